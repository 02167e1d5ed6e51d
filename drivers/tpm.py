"""A TPM 2.0, for attestation: a key that never leaves it, a PCR to extend, and quotes of that PCR.

Blocking, and used by one thread at a time. `tpm2-pytss` is imported when a TPM is opened: only a daemon with
`[attest] tpm` needs it. The attestation key is a primary key of the owner hierarchy, made from the same template at
each start: it is the same key until the TPM is cleared, and nothing has to be stored.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final

from attrs import define

from hearth.errors import ConfigError, DeviceError

TEMPLATE: Final = "ecc256:ecdsa-sha256:null"
ATTRIBUTES: Final = "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|restricted|sign"


def tcti_of(tpm: str) -> str:
    """Return the TCTI string of `[attest] tpm`, which is one, or the path of a device."""
    return f"device:{tpm}" if tpm.startswith("/") else tpm


@define(eq=False)
class Tpm:
    """An open TPM. `public` is the attestation key in PEM, `name` the TPM's name for it, in hex."""

    pcr: int
    public: str
    name: str
    _pytss: Any
    _esapi: Any
    _key: Any

    @classmethod
    def open(cls, tpm: str, pcr: int) -> Tpm:
        """Open a TPM and make its attestation key. Raises ConfigError."""
        pytss = _library()
        try:
            esapi = pytss.ESAPI(tcti_of(tpm))
            template = pytss.TPM2B_PUBLIC.parse(TEMPLATE, objectAttributes=ATTRIBUTES)
            key, public, *_ = esapi.create_primary(pytss.TPM2B_SENSITIVE_CREATE(), template)
        except (pytss.TSS2_Exception, RuntimeError) as error:
            cure = "is it there, and is the daemon's user in its group (tss)?"
            raise ConfigError(f"[attest] tpm: {tpm} cannot be used: {error}; {cure}") from None
        return cls(pcr, public.to_pem().decode(), bytes(public.get_name()).hex(), pytss, esapi, key)

    def value(self) -> bytes:
        """Return the value of the PCR in the SHA-256 bank. Raises DeviceError."""
        _, _, digests = self._ask("pcr_read", f"sha256:{self.pcr}")
        if not len(digests):
            raise DeviceError(f"TPM: PCR {self.pcr} has no SHA-256 bank", effect="none")
        return bytes(digests[0])

    def extend(self, digest: bytes) -> None:
        """Extend the PCR with a SHA-256. Raises DeviceError."""
        pytss = self._pytss
        value = pytss.TPMT_HA(hashAlg=pytss.TPM2_ALG.SHA256, digest=pytss.TPMU_HA(sha256=digest))
        self._ask("pcr_extend", pytss.ESYS_TR(self.pcr), pytss.TPML_DIGEST_VALUES([value]))

    def quote(self, qualifying: bytes) -> tuple[bytes, bytes]:
        """Return a TPMS_ATTEST of the PCR and its TPMT_SIGNATURE. Raises DeviceError."""
        quoted, signature = self._ask("quote", self._key, f"sha256:{self.pcr}", qualifying)
        return bytes(quoted), signature.marshal()

    def close(self) -> None:
        """Remove the key from the TPM's memory and close the connection. Raises DeviceError."""
        self._ask("flush_context", self._key)
        self._esapi.close()

    def _ask(self, command: str, *args: Any) -> Any:
        try:
            return getattr(self._esapi, command)(*args)
        except self._pytss.TSS2_Exception as error:
            raise DeviceError(f"TPM: {command}: {error}", effect="none") from None


def _library() -> Any:
    """Return the module tpm2_pytss. Raises ConfigError."""
    # Its errors are raised as exceptions; by default libtss2 prints them too.
    os.environ.setdefault("TSS2_LOG", "all+none")
    try:
        return import_module("tpm2_pytss")
    except (ImportError, NotImplementedError) as error:  # NotImplementedError: it finds no libtss2
        cure = "apt-get install libtss2-dev gcc, and pip install 'hearthd[tpm]'"
        raise ConfigError(f"[attest] tpm: the library tpm2-pytss cannot be used: {error}; {cure}") from None
