"""A small certificate authority for scheduler, workers and server, for users who have none.

A folder holds the authority (`ca.crt`, `ca.key`) and one folder for each machine (`ca.crt`, `tls.crt`,
`tls.key`). Every certificate of the authority is trusted, so `ca.key` stays where it was made. Only
their owner can read keys (0600).
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from collage.cluster.connection import CA, CERTIFICATE, KEY
from collage.partitioner.errors import BadInputError

_CA_KEY = "ca.key"
_CA_DAYS = 3650
# Clocks of machines differ a little.
_EARLIER = timedelta(minutes=5)
_USES = (
    *(
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
    ),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


@dataclass(frozen=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_certificates(
    folder: Path, names: Sequence[str], hosts: Sequence[str] = (), days: int = 825
) -> list[Path]:
    """Make a folder with certificate and key for each machine, and the authority where there is none.

    Args:
        folder: of the authority.
        names: of machines; each gets `folder/NAME`.
        hosts: names and addresses by which clients reach these machines, for HTTPS.
        days: how long the certificates are good.

    Raises:
        BadInputError: a name cannot be used, or a machine has a certificate already.
    """
    for name in names:
        if not _NAME.match(name):
            raise BadInputError(f"{name!r} cannot name a machine: use letters, digits and . _ -")
        if (folder / name).exists():
            raise BadInputError(f"{folder / name} exists; remove it to make a new certificate")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = _authority(folder)
    made = []
    for name in names:
        own = folder / name
        own.mkdir(mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _issue(authority, key.public_key(), name, hosts, days)
        _write(own / CA, _pem(authority.certificate), 0o644)
        _write(own / CERTIFICATE, _pem(certificate), 0o644)
        _write(own / KEY, _pem_key(key), 0o600)
        made.append(own)
    return made


def _authority(folder: Path) -> _Authority:
    """The authority of a folder, made when it has none."""
    certificate, key = folder / CA, folder / _CA_KEY
    if not certificate.exists():
        made = _new_authority()
        _write(key, _pem_key(made.key), 0o600)
        _write(certificate, _pem(made.certificate), 0o644)
        return made
    try:
        found = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise BadInputError(
            f"{key} cannot be read ({error}): make certificates where the authority was made"
        ) from None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise BadInputError(f"{key} was not made by `collage certs`")
    return _Authority(x509.load_pem_x509_certificate(certificate.read_bytes()), found)


def _new_authority() -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Collage workers")
    usage = _usage("key_cert_sign", "crl_sign")
    certificate = (
        _builder(name, name, key.public_key(), _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _Authority(certificate, key)


def _issue(
    authority: _Authority, key: ec.EllipticCurvePublicKey, name: str, hosts: Sequence[str], days: int
) -> x509.Certificate:
    issuer = authority.key.public_key()
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    names = [_general_name(host) for host in dict.fromkeys([name, *hosts])]
    return (
        _builder(authority.certificate.subject, _name(name), key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{use: use in allowed for use in _USES})


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    # Created with its rights, so that others can never read a key.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
