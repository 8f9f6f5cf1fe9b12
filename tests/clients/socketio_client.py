"""A chat over python-socketio's asynchronous client, the library under the vendor's Python kit. Prints {"event", "data"}
for each event, {"ack", "of"} for each acknowledgement asked for, and at last {"messages": [...]} as REST gives them
right after the end."""

import asyncio
import json
import sys
from urllib.parse import quote

import aiohttp
import socketio

from answers import askuser_answer
from chat import EVENTS, Chat
from program import argument_parser, headers, parse, print_line, remark

LEAVE_SECONDS = 1.0


def print_json(value):
    print_line(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


class Client:
    def __init__(self, args, http, session_id):
        self.args = args
        self.session_id = session_id
        self.socket = socketio.AsyncClient(http_session=http)
        self.chat = Chat()
        self.patches = 0
        self.sent = []
        self.ended = asyncio.get_running_loop().create_future()
        for event in EVENTS:
            self.socket.on(event, self.handler(event))
        self.socket.on("disconnect", self.disconnected)

    def handler(self, event):
        # Not a coroutine: the library runs those as they come, and the order would be theirs.
        def handle(data):
            try:
                self.see(event, data)
            except Exception as error:  # the library would log it and go on
                if not self.ended.done():
                    self.ended.set_exception(error)

        return handle

    def disconnected(self, reason):
        if not self.ended.done():
            remark(f"disconnected: {reason}")

    def see(self, event, data):
        print_json({"event": event, "data": data})
        self.chat.see(event, data)
        if event == "turn:patch":
            self.patches += 1
            if self.patches == self.args.stop_after:
                self.later("chat:stop", {}, wants_ack=True)
        if event == "system:error" and not self.chat.open:
            raise RuntimeError(f"refused: {data['message']}")
        if event != "chat:end" or self.ended.done():
            return
        if not self.chat.awaiting() or self.args.answer == "none":
            self.ended.set_result(None)
        elif not self.args.watch:
            answer = askuser_answer(self.chat.question(), self.args.answer)
            self.later("chat:send", {"message": "", "askuser_answer": answer})

    def later(self, event, payload, wants_ack=False):
        self.sent.append(asyncio.ensure_future(self.emit(event, payload, wants_ack)))

    async def emit(self, event, payload, wants_ack=False):
        """Explicit nulls are this family's habit; early clients ask for an acknowledgement of `chat:stop` alone."""
        callback = None
        if wants_ack or self.args.acks:
            acked = asyncio.get_running_loop().create_future()
            self.sent.append(acked)

            def callback(*ack):
                print_json({"ack": ack[0] if ack else None, "of": event})
                acked.set_result(None)

        await self.socket.emit(event, {"session_id": self.session_id, **payload}, callback=callback)

    async def converse(self):
        transports = None if self.args.transport == "default" else [self.args.transport]
        await self.socket.connect(self.args.base, auth={"token": self.args.token}, transports=transports)
        await self.emit("session:subscribe", {})
        if not self.args.watch:
            nothing_else = dict.fromkeys(("mode", "askuser_answer", "model"))
            await self.emit("chat:send", {**nothing_else, "message": self.args.prompt, "model": self.args.model})
        await self.ended

    async def leave(self):
        """Over polling the library waits for its last request, which a server may hold for as long as a ping takes."""
        try:
            await asyncio.wait_for(self.socket.disconnect(), LEAVE_SECONDS)
        except asyncio.TimeoutError:
            remark("left without a farewell")


async def rest(args, http, method, path, **how):
    async with http.request(method, args.base + path, headers=headers(args), **how) as response:
        text = await response.text()
        if not response.ok:
            raise RuntimeError(f"{method} {path}: {response.status} {text}")
        return json.loads(text)


async def talk(args):
    # Without the bearer header as a default: the socket has nothing but `auth` to show.
    async with aiohttp.ClientSession() as http:
        session_id = args.session
        if session_id is None:
            body = {"intent": "", "is_persistent": False, "model": args.model}
            session_id = (await rest(args, http, "POST", "/api/sessions", json=body))["session_id"]
        client = Client(args, http, session_id)
        try:
            await client.converse()
            messages = await rest(args, http, "GET", f"/api/sessions/{quote(session_id, safe='')}/messages")
            await asyncio.gather(*client.sent)
            if not isinstance(messages, list):
                raise RuntimeError(f"messages are no list: {messages}")
            print_json({"messages": messages})
        finally:
            await client.leave()


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--model")
    parser.add_argument("--transport", choices=["websocket", "polling", "default"], default="default")
    parser.add_argument("--watch", action="store_true", help="subscribe only, never send")
    parser.add_argument("--acks", action="store_true", help="ask for an acknowledgement of everything")
    parser.add_argument("--stop-after", type=int, metavar="N", help="stop the chat after N patches")
    args = parse(parser)
    if args.watch and args.session is None:
        parser.error("--watch needs --session")
    if not args.watch and args.prompt is None:
        parser.error("--prompt is needed")
    try:
        asyncio.run(talk(args))
    except (RuntimeError, OSError, aiohttp.ClientError, socketio.exceptions.SocketIOError, LookupError) as error:
        sys.exit(f"failed: {error!r}")


main()
