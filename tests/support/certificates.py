"""Throw-away certificates for tests, by the command openssl."""

import subprocess
from pathlib import Path

_EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def make_authority(folder: Path, name: str = "ca") -> Path:
    """Make an authority; its key is beside it."""
    authority = folder / f"{name}.pem"
    openssl(
        "req", "-x509", *_EC, "-keyout", folder / f"{name}.key", "-out", authority, "-subj", f"/CN={name}"
    )
    return authority


def make_certificate(authority: Path, name: str, alternatives: str, *, days: int = 30) -> tuple[Path, Path]:
    """Return certificate and key. alternatives: the subjectAltName, such as `DNS:n1,IP:127.0.0.1`. days: of
    its validity; -1: it expired yesterday."""
    folder = authority.parent
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    request, more = folder / f"{name}.request", folder / f"{name}.more"
    more.write_text(f"subjectAltName={alternatives}\n")
    openssl("req", *_EC, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
    signed_by = ["-CA", authority, "-CAkey", authority.with_suffix(".key"), "-CAcreateserial"]
    signed_by += ["-days", days]
    openssl("x509", "-req", "-in", request, *signed_by, "-extfile", more, "-out", certificate)
    return certificate, key
