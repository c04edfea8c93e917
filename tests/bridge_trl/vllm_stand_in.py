"""A stand-in for vLLM beside TRL: another copy of the model samples, and says how likely its tokens
were, in the fields and shapes that TRL's own `VLLMGeneration` returns them in.
"""

import copy
from typing import Any

import pytest
import torch

# Faults of a sampler beside the trainer.
STALE = "stale weights"
LOST = "weights lost in sleep"
RAW = "log-probabilities before the temperature"
TOP_K = "top-k of the model's own file"
PENALTY = "repetition penalty of the model's own file"


class Served:
    """Takes the arguments of TRL's `VLLMGeneration`."""

    fault = ""

    def __init__(self, model: Any, accelerator: Any, processing_class: Any, **options: Any) -> None:
        self._trained = model
        self._device = accelerator.device
        self._tokenizer = processing_class
        self._options = options
        self._own = copy.deepcopy(model)
        self.n_synced = 0

    def sync_weights(self) -> None:
        """Take the trained weights."""
        self.n_synced += 1
        if self.fault == STALE and self.n_synced > 1:
            return
        if self.fault == LOST and self.n_synced > 1:
            with torch.no_grad():
                for parameter in self._own.parameters():
                    parameter.normal_(0, 0.02)
            return
        self._own.load_state_dict(self._trained.state_dict())

    def generate(
        self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None
    ) -> tuple[Any, Any, Any, Any]:
        """Sample one completion per prompt."""
        del images, num_generations, profiler
        options = self._options
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), self._tokenizer.pad_token_id)
        attention = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            attention[row, width - len(prompt) :] = 1
        forward = type(self._own).forward  # TRL's fused head is the learner's
        self._own.forward = forward.__get__(self._own)
        with torch.no_grad():
            output = self._own.eval().generate(
                input_ids=ids,
                attention_mask=attention,
                do_sample=True,
                temperature=options["temperature"],
                top_k=2 if self.fault == TOP_K else options["top_k"],
                top_p=options["top_p"],
                repetition_penalty=1.5 if self.fault == PENALTY else options["repetition_penalty"],
                max_new_tokens=options["max_completion_length"],
                return_dict_in_generate=True,
                output_scores=True,
                output_logits=True,
            )
        steps = output.logits if self.fault == RAW else output.scores
        logprobs = torch.log_softmax(torch.stack(steps, 1).float(), -1)
        written: list[list[int]] = []
        own_logprobs: list[list[list[float]]] = []
        for row, tokens in enumerate(output.sequences[:, width:].tolist()):
            stop = self._tokenizer.eos_token_id
            size = tokens.index(stop) + 1 if stop in tokens else len(tokens)
            written.append(tokens[:size])
            own_logprobs.append([[float(logprobs[row, i, tokens[i]])] for i in range(size)])
        return prompts, written, own_logprobs, None


def serve(monkeypatch: pytest.MonkeyPatch, fault: str = "") -> dict[str, Any]:
    """Let TRL find the stand-in where it looks for vLLM; return the trainer's options."""
    served = type("FaultyServed", (Served,), {"fault": fault})
    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", served)
    return {"use_vllm": True, "vllm_mode": "colocate"}
