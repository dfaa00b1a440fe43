"""Client for a daemon's gRPC endpoint, usually on another host, with a certificate or a token."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disagg_cluster.control.client import BrokenOffError, MayNotAskError, NoDaemonError
from disagg_cluster.control.messages import (
    ControlReply,
    ControlRequest,
    ReplyOutcome,
    answer_seconds,
    name_of,
)
from disagg_cluster.control.remote.coding import (
    METHODS,
    REPLY_METADATA,
    decode_answer,
    decode_status,
    encode_call,
)
from disagg_cluster.control.remote.connection_errors import (
    CredentialsError,
    check_certificates,
    unavailable_reason,
)
from disagg_cluster.control.wire import WireError
from disagg_cluster.host.files.named_paths import read_bounded

if TYPE_CHECKING:
    import grpc

_MOST_BYTES = 1 << 20
_OPTIONS = (
    # Detects a daemon that has disappeared without closing the connection.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)


@dataclass(frozen=True, slots=True)
class RemoteDaemon:
    """A daemon's address and the files that authenticate both sides.

    Without `ca`, the root certificates shipped with gRPC are trusted.
    """

    address: str
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token_file: Path | None = None

    def ask(
        self, request: ControlRequest, patience_seconds: float | None = None
    ) -> Iterator[ControlReply]:
        """Yields the replies to a request as they arrive; the last one is final.

        Args:
            request: The request to send.
            patience_seconds: How long the daemon may be silent; as for `client.ask`.

        Raises:
            NoDaemonError: Nothing answers there, or it refuses the connection.
            MayNotAskError: The token is missing or wrong.
            BrokenOffError: It is silent for too long, or the connection ended without a final
                reply.
            CredentialsError: A file cannot be read, or grpcio is not installed.
        """
        grpc, begun = _grpc(), False
        try:
            with grpc.secure_channel(self.address, self._credentials(), _OPTIONS) as channel:
                for reply in self._asked(channel, request, patience_seconds):
                    begun = True
                    yield reply
        except grpc.RpcError as error:
            yield self._complaint(error, request, begun=begun)
        except WireError as error:
            why = f"what answers at {self.address} is no disagg-node: {error}"
            raise BrokenOffError(why) from None

    def _asked(
        self, channel: grpc.Channel, request: ControlRequest, patience_seconds: float | None
    ) -> Iterator[ControlReply]:
        method, data = METHODS[name_of(request.verb)], encode_call(request)
        token = () if self.token_file is None else (("authorization", self._token()),)
        if method.streams:
            call = channel.unary_stream(method.path)
            answers = call(data, timeout=request.deadline_seconds, metadata=token)
            first_seconds = patience_seconds or answer_seconds(request.verb)
            for answer in self._in_time(answers, first_seconds, patience_seconds):
                yield decode_answer(answer)
            return
        once, seconds = channel.unary_unary(method.path), request.deadline_seconds
        answer = once(data, timeout=seconds or answer_seconds(request.verb), metadata=token)
        if method.verb == "status":
            yield from decode_status(answer, request.id)
        else:
            yield decode_answer(answer)

    def _in_time(
        self, answers: Any, first_seconds: float, further_seconds: float | None
    ) -> Iterator[bytes]:
        """Yield a stream's answers while the daemon is not silent for too long.

        A deadline of the call would end the whole stream, and tell the daemon to.
        """
        silent = threading.Event()
        seconds: float | None = first_seconds

        def end() -> None:
            silent.set()
            answers.cancel()

        while True:
            timer = None if seconds is None else threading.Timer(seconds, end)
            if timer is not None:
                timer.daemon = True
                timer.start()
            try:
                answer = next(answers, None)
            except Exception:
                if not silent.is_set():
                    raise
                raise self._silence() from None
            finally:
                if timer is not None:
                    timer.cancel()
            if answer is None:
                return
            yield answer
            seconds = further_seconds

    def _silence(self) -> BrokenOffError:
        return BrokenOffError(f"the daemon at {self.address} does not answer in time")

    def _complaint(self, error: Any, request: ControlRequest, *, begun: bool) -> ControlReply:
        """The reply that came with an error; raises if the daemon sent none.

        `begun`: replies had arrived before.
        """
        metadata = dict(error.trailing_metadata() or ())
        if REPLY_METADATA in metadata:
            return decode_answer(metadata[REPLY_METADATA])
        code, why = error.code().name, error.details()
        match code:
            case "DEADLINE_EXCEEDED" if request.deadline_seconds is None:
                # This is our own limit for the first reply.
                raise self._silence()
            case "DEADLINE_EXCEEDED":
                text, way_out = "not done in time; it goes on", "disagg-node status shows it"
                return ControlReply(request.id, ReplyOutcome.TIMEOUT, text, way_out)
            case "UNAUTHENTICATED" if self.token_file is not None:
                told_token = f"does not know the token of {self.token_file}: is it another node's?"
                raise MayNotAskError(f"the daemon at {self.address} {told_token}")
            case "UNAUTHENTICATED":
                raise MayNotAskError(
                    f"the daemon at {self.address} wants its token: name its file with --token-file"
                )
            case "UNAVAILABLE" | "CANCELLED" if begun:
                raise BrokenOffError(
                    f"the daemon at {self.address} ended before the outcome was known; "
                    "disagg-node status shows how its successor stands"
                )
            case "UNAVAILABLE":
                told_why = unavailable_reason(why or "", self.cert)
                raise NoDaemonError(f"no daemon answers at {self.address}: {told_why}")
        raise BrokenOffError(f"the daemon at {self.address} broke off: {code}, {why}")

    def _credentials(self) -> grpc.ChannelCredentials:
        check_certificates(self.ca, self.cert, self.key)
        ca, key, cert = (_content(path) for path in (self.ca, self.key, self.cert))
        return _grpc().ssl_channel_credentials(ca, key, cert)

    def _token(self) -> str:
        token = (_content(self.token_file) or b"").strip()
        if not token or not all(33 <= byte <= 126 for byte in token):
            raise CredentialsError(f"{self.token_file}: holds no token")
        return f"Bearer {token.decode()}"


def _content(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return read_bounded(path, _MOST_BYTES)
    except OSError as error:
        raise CredentialsError(f"{path}: cannot be read: {error.strerror or error}") from None


def _grpc() -> Any:
    # gRPC would print its own messages beside ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        import grpc
    except ImportError:
        hint = "pip install 'disagg-node[grpc]'"
        raise CredentialsError(f"--address needs gRPC, which is not installed: {hint}") from None
    return grpc
