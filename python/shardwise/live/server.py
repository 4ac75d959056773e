"""The server of the page: takes snapshots from ranks and gives them to the page."""

import contextlib
import json
import socket
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from shardwise.live.board import Board

PAGE = Path(__file__).parent / "page.html"
MOST_BYTES = 16 << 20  # per snapshot: meshes and groups list their ranks, up to 0.4 MB each


def application(board: Board) -> Starlette:
    async def page(request: Request) -> Response:
        return FileResponse(PAGE, media_type="text/html", headers={"Cache-Control": "no-store"})

    async def state(request: Request) -> Response:
        return JSONResponse(board.state(request.query_params.get("job")), headers={"Cache-Control": "no-store"})

    async def feed(request: Request) -> Response:
        # Other pages in a browser cannot send this type without asking first.
        if request.headers.get("content-type") != "application/json":
            return JSONResponse({"error": "send application/json"}, status_code=415)
        body = bytearray()
        try:
            async for part in request.stream():  # all: a sender does not read the answer before it has sent all
                if len(body) <= MOST_BYTES:
                    body += part
        except ClientDisconnect:
            return Response(status_code=400)
        if len(body) > MOST_BYTES:
            return JSONResponse({"error": f"more than {MOST_BYTES} bytes"}, status_code=413)
        try:
            board.take(json.loads(body))
        except (ValueError, RecursionError) as error:
            return JSONResponse({"error": f"no snapshot: {error}"}, status_code=400)
        return JSONResponse({})

    return Starlette(
        routes=[Route("/", page), Route("/state", state), Route("/feed", feed, methods=["POST"])],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])],
    )


def listener_on(port: int) -> socket.socket:
    """A listening socket; clients that connect wait until serve(). Port 0: any free port. Raises OSError if the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()  # a client may connect as soon as it reads the line of serve()
    except OSError:
        listener.close()
        raise
    return listener


def serve(listener: socket.socket) -> None:
    """Prints the address, serves until Ctrl+C, and closes the listener. Raises OSError if the address cannot be printed."""
    with listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/ (Ctrl+C ends it)", flush=True)
        config = uvicorn.Config(application(Board()), log_level="warning", access_log=False)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
