"""Code that runs inside vLLM: a worker that takes the learner's weights, and layers that refuse
requests.

vLLM runs in an environment without Uptrend. So this file imports nothing of it, and `uptrend models
serve` gives a copy to the server under the name `uptrend_worker`: `--worker-extension-cls
uptrend_worker.Worker` and `--middleware uptrend_worker.RequireKey`.
"""

import hmac
import json
import os
from typing import Any

# Close code of a WebSocket for a message that the server's policy forbids (RFC 6455, 7.4.1).
WEBSOCKET_POLICY_VIOLATION = 1008


class Worker:
    """Methods that vLLM adds to its own worker, for POST /collective_rpc."""

    model_runner: Any  # vLLM's

    def uptrend_load(self, path: str, name: str) -> None:
        """Load all weights from a safetensors file, and remember their name."""
        from safetensors import safe_open
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        self._uptrend_name = ""  # in case this fails halfway
        with safe_open(path, framework="pt") as file:
            weights = ((key, file.get_tensor(key)) for key in file.keys())  # noqa: SIM118 (no mapping)
            self.model_runner.reload_weights(weights_iterator=weights)
        # On a CPU vLLM packs the head's weight for its kernels. After a reload it leaves out a head
        # that is tied to the embedding, which would go on with the old weights. So all heads are
        # packed here: for any other one it changes nothing, and on a GPU the call does nothing.
        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
        self._uptrend_name = name

    def uptrend_name(self) -> str:
        """Return the name of the weights that were loaded last; empty if none were."""
        return getattr(self, "_uptrend_name", "")


class _RefusingMiddleware:
    """ASGI layer in front of all of vLLM's paths."""

    status = 0
    reason = ""

    def __init__(self, app: Any) -> None:
        self._app = app

    def is_allowed(self, scope: Any) -> bool:
        raise NotImplementedError

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or self.is_allowed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send(
                {
                    "type": "websocket.close",
                    "code": WEBSOCKET_POLICY_VIOLATION,
                    "reason": self.reason,
                }
            )
        else:
            body = json.dumps({"error": {"message": self.reason}}).encode()
            length = str(len(body)).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", length)]
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
            await send({"type": "http.response.body", "body": body})


class RequireKey(_RefusingMiddleware):
    """Refuses requests without the key of $VLLM_API_KEY, on all paths but /health.

    vLLM's own check leaves out paths beyond /v1, among them all that replace weights.
    """

    status = 401
    reason = "This server needs its key: Authorization: Bearer KEY."

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._key = os.environ.get("VLLM_API_KEY", "").encode()
        if not self._key:  # for example because the command was copied to another machine
            raise RuntimeError("VLLM_API_KEY is not set: this server is not safe without a key.")

    def is_allowed(self, scope: Any) -> bool:
        if scope["type"] == "http" and scope["path"] == "/health":
            return True
        for name, value in scope["headers"]:
            scheme, _, key = value.partition(b" ")
            is_bearer = name == b"authorization" and scheme.lower() == b"bearer"
            # compare_digest takes as long for every wrong key, so that it can't be found by timing.
            if is_bearer and hmac.compare_digest(key, self._key):
                return True
        return False


class RefusePages(_RefusingMiddleware):
    """Refuses requests of web pages: a browser on this machine sends any site's requests to
    loopback.
    """

    status = 403
    reason = "Web pages get no answer from a server without a key: set VLLM_API_KEY."

    def is_allowed(self, scope: Any) -> bool:
        return all(name != b"origin" for name, _ in scope["headers"])
