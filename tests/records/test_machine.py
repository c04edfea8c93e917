"""What a run records of its machine."""

from uptrend.records.machine import recorded_environment


def test_the_environment_is_recorded_without_secrets_and_addresses() -> None:
    environment = {
        "VLLM_USE_V1": "1",
        "NCCL_P2P_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "VLLM_API_KEY": "secret",
        "UNSLOTH_TOKEN": "secret",
        "ACCELERATE_AUTH": "secret",
        "TORCH_HOME": "https://user:secret@host/",
        "CUDA_VISIBLE_DEVICES": "0" * 500,
        "HF_TOKEN": "secret",
        "HOME": "/home/somebody",
    }
    assert recorded_environment(environment) == {
        "NCCL_P2P_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "VLLM_USE_V1": "1",
    }
