"""Object stores: which credentials polars uses, and one sentence for what went wrong."""

from __future__ import annotations

import os
import re
from typing import Any

from classgap.checks import InputError

# What the library that reads the store takes from the environment; beside these, the cloud library would be asked first.
_OWN_CREDENTIALS = {
    "gs": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    "az": (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_USE_EMULATOR",
    ),
}
_SCHEMES = {"gs": "gs", "gcs": "gs", "az": "az", "azure": "az", "abfs": "az", "abfss": "az", "adl": "az", "hf": "hf"}
_WAYS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (and AWS_ENDPOINT_URL for other stores than Amazon's)",
    "gs": "run 'gcloud auth application-default login', or set GOOGLE_APPLICATION_CREDENTIALS to a key file",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN), or use azure-identity",
    "hf": "set HF_TOKEN for a private data set",
}
_NOT_FOUND = re.compile(r"not found|404|nosuchbucket|nosuchkey", re.IGNORECASE)
_NO_CREDENTIALS = re.compile(
    r"credential|account must be specified|unauthorized|forbidden|401|403|access denied|authentication", re.IGNORECASE
)
_UNREACHABLE = re.compile(r"error sending request|connect|timed out|dns|resolve", re.IGNORECASE)


def scheme_of(address: str) -> str:
    """``s3``, ``gs``, ``az`` or ``hf``; other schemes as they are."""
    scheme = address.partition("://")[0].lower()
    return _SCHEMES.get(scheme, scheme)


def store_options(address: Any) -> dict[str, Any]:
    """Options of polars for this address: with its own credentials in the environment, no cloud library is asked for others."""
    if not isinstance(address, str) or "://" not in address:
        return {}
    own = any(os.environ.get(name) for name in _OWN_CREDENTIALS.get(scheme_of(address), ()))
    return {"credential_provider": None} if own else {}


def unreadable(address: str, error: BaseException) -> InputError:
    """The sentence for an address that cannot be read: what is missing, and what to do."""
    reason = " ".join(str(error).split("; note: if you are using Python")[0].split())
    way = _WAYS.get(scheme_of(address), "check the address and your credentials")
    if not isinstance(error, FileNotFoundError) and _NO_CREDENTIALS.search(reason):
        cause = f"credentials are missing or not accepted; {way}"
    elif isinstance(error, FileNotFoundError) or _NOT_FOUND.search(reason):
        cause = "there is no such bucket, folder or file; check the address, and that your credentials may see it"
    elif _UNREACHABLE.search(reason):
        cause = f"the store cannot be reached; check the network, the address and your credentials ({way})"
    else:
        cause = "check the address and your credentials"
    return InputError(f"{address} cannot be read: {cause} [{reason[:300]}]")
