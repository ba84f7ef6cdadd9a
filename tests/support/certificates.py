"""A certificate authority of one test, and certificates of servers and clients, made by openssl."""

import shutil
import subprocess
from pathlib import Path

from scheduler.embedded.account import account, temporary_folder

CONFIG = "[req]\ndistinguished_name = name\n[name]\n"
HERE = "DNS:localhost,IP:127.0.0.1"


class Authority:
    """Makes certificates in a folder that the servers of tests can read."""

    def __init__(self) -> None:
        self.folder = temporary_folder("scheduler-tls-", account())
        (self.folder / "openssl.cnf").write_text(CONFIG, encoding="utf-8")
        self._make(
            "ca",
            "basicConstraints=critical,CA:TRUE",
            "keyUsage=critical,keyCertSign,digitalSignature",
        )
        self.ca = str(self.folder / "ca.pem")

    def issue(self, name: str, *, hosts: str = HERE) -> tuple[str, str]:
        """Make a certificate; return its file and its key's."""
        key = self._make(
            name,
            "basicConstraints=CA:FALSE",
            f"subjectAltName={hosts}",
            signer=("ca.pem", "ca.key"),
        )
        return str(key.with_suffix(".pem")), str(key)

    def server(self, *, hosts: str = HERE, asks: str = "no") -> list[str]:
        """Make a certificate for a Redis; return its options. `asks`: whether clients need one
        too.
        """
        cert, key = self.issue("server", hosts=hosts)
        return [
            "--tls-cert-file",
            cert,
            "--tls-key-file",
            key,
            "--tls-ca-cert-file",
            self.ca,
            "--tls-auth-clients",
            asks,
        ]

    def close(self) -> None:
        """Remove them."""
        shutil.rmtree(self.folder)

    def _make(self, name: str, *extensions: str, signer: tuple[str, str] | None = None) -> Path:
        signed = ("-CA", signer[0], "-CAkey", signer[1]) if signer else ()
        added = [word for extension in extensions for word in ("-addext", extension)]
        command = [
            "openssl",
            "req",
            "-x509",
            "-config",
            "openssl.cnf",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN={name}",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.pem",
            *signed,
            *added,
        ]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, timeout=30)
        key = self.folder / f"{name}.key"
        key.chmod(0o644)
        return key
