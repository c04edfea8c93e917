"""The Hugging Face hub: asked for an answer before a library waits for it through timeouts and
retries. No torch.
"""

import http.client
import os
import ssl
import threading
import urllib.error
import urllib.request

PATIENCE = 3.0
"""Seconds within which the hub must answer."""
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")


def hub_problem() -> str:
    """Return why the hub does not answer; empty where it does, and where the user switched it off:
    then libraries look into their caches at once.
    """
    if any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in OFFLINE):
        return ""
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    scheme = endpoint.partition(":")[0]
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all") or ""
    if proxy.startswith("socks"):  # the libraries speak it, urllib does not
        return ""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({scheme: proxy} if proxy else {})
    )
    said = [f"no answer within {PATIENCE:g} s"]

    def ask() -> None:
        try:
            opener.open(urllib.request.Request(endpoint, method="HEAD"), timeout=PATIENCE).close()
            said.append("")
        except urllib.error.HTTPError:  # an answer, whatever it says
            said.append("")
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            # the libraries may trust certificates that Python does not
            if isinstance(reason, ssl.SSLError):
                said.append("")
            elif not isinstance(reason, TimeoutError):
                said.append(getattr(reason, "strerror", None) or str(reason))

    # In a thread, as no timeout holds for looking up a name.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if not said[-1]:
        return ""
    through = f" through the proxy {proxy}" if proxy else ""
    return (
        f"{endpoint} can't be reached{through} ({said[-1]}). Connect to it, or set HF_ENDPOINT to a"
        " mirror"
    )
