"""Takes the learner's weights inside vLLM: `--worker-extension-cls uptrend_worker.Worker`.

`uptrend models serve` hands this file alone to the server under the name `uptrend_worker`, since that runs in an
environment without Uptrend. So it imports nothing of it.
"""

from typing import Any


class Worker:
    """Methods that vLLM adds to its own worker, for POST /collective_rpc."""

    model_runner: Any  # vLLM's

    def uptrend_load(self, path: str, name: str) -> None:
        """Load all weights from a safetensors file, and remember their name."""
        from safetensors import safe_open
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        self._uptrend_name = ""  # nothing, should this fail half way
        with safe_open(path, framework="pt") as file:
            weights = ((key, file.get_tensor(key)) for key in file.keys())  # noqa: SIM118 (no mapping)
            self.model_runner.reload_weights(weights_iterator=weights)
        # A CPU packs the head's weight for its kernels, and a head that is tied to the embedding is not packed anew.
        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
        self._uptrend_name = name

    def uptrend_name(self) -> str:
        """Return the name of the weights that were loaded last; empty for those that the server began with."""
        return getattr(self, "_uptrend_name", "")
