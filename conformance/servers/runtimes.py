"""Servers by the runtime of their language."""

import os
import subprocess
import sys

from .clients import ECHO_TCP, ECHO_UDP, echo_tcp, http
from .program import Program, sh, write

# Set by the environment: a virtual environment with uvicorn, uvloop, gunicorn; node of another version.
VENV = os.environ.get("ABEY_TEST_VENV", "/nonexistent")
NODE24 = os.environ.get("ABEY_TEST_NODE24", "/nonexistent")


def node(directory, values):
    write(directory, "server.js", f"""
const http = require('http'), dgram = require('dgram'), net = require('net');
http.createServer((q, s) => s.end('hello ' + process.version + 'x'.repeat(20000))).listen({values['port']}, '0.0.0.0');
const u = dgram.createSocket('udp4'); u.on('message', (m, r) => u.send(m, r.port, r.address)); u.bind(7007);
net.createServer({{allowHalfOpen: true}}, c => c.pipe(c)).listen(7008, '0.0.0.0');
""")


NODE = [*http(), [sys.executable, "-c", ECHO_UDP, "{server}", "7007", "20"], [sys.executable, "-c", ECHO_TCP, "{server}", "7008", "20"],
        sh("ab -q -k -s 60 -n 500 -c 32 http://{server}:{port}/ | grep -q 'Failed requests: *0'")]


def asgi(directory, values):
    write(directory, "app.py", """
async def app(scope, receive, send):
    if scope['type'] != 'http':
        return
    await send({'type': 'http.response.start', 'status': 200, 'headers': [(b'content-length', b'5')]})
    await send({'type': 'http.response.body', 'body': b'hello'})
""")


def wsgi(directory, values):
    write(directory, "app.py", "def app(environ, start):\n    start('200 OK', [('Content-Length', '5')])\n    return [b'hello']\n")


GO = """
package main
%s
import ("fmt"; "net"; "net/http"; "os"; "strings"; "io")
func main() {
	%s
	go func() { l, _ := net.Listen("tcp4", ":7008"); for { c, e := l.Accept(); if e != nil { return }; go func() { io.Copy(c, c); c.(*net.TCPConn).CloseWrite() }() } }()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello ", strings.Repeat("x", 20000)) })
	http.ListenAndServe("0.0.0.0:" + os.Args[1], nil)
}
"""


def go(cgo):
    def prepare(directory, values):
        parts = ("// int one(void) { return 1; }\nimport \"C\"\n", "_ = C.one()") if cgo else ("", "")
        write(directory, "main.go", GO % parts)
        subprocess.run(["go", "build", "-o", "server", "main.go"], cwd=directory, check=True, capture_output=True,
                       env={**os.environ, "CGO_ENABLED": "1" if cgo else "0", "GO111MODULE": "off", "GOFLAGS": ""})
    return prepare


URING = r"""
#include <liburing.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static struct io_uring ring;
static char buffers[1024][65536];
static void queue(int kind, int fd, int length) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    if (kind == 0) io_uring_prep_accept(sqe, fd, 0, 0, 0);
    else if (kind == 1) io_uring_prep_recv(sqe, fd, buffers[fd], sizeof buffers[fd], 0);
    else io_uring_prep_send(sqe, fd, buffers[fd], length, MSG_WAITALL);
    io_uring_sqe_set_data64(sqe, (unsigned long) kind << 32 | fd);
}
int main(int count, char **words) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(words[1])) };
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (io_uring_queue_init(256, &ring, 0)) return 3;
    if (bind(listener, (void *) &at, sizeof at) || listen(listener, 64)) return 2;
    queue(0, listener, 0);
    for (;;) {
        struct io_uring_cqe *cqe;
        io_uring_submit_and_wait(&ring, 1);
        while (!io_uring_peek_cqe(&ring, &cqe)) {
            unsigned long data = cqe->user_data; int kind = data >> 32, fd = (int) data, result = cqe->res;
            io_uring_cqe_seen(&ring, cqe);
            if (kind == 0) { if (result >= 0) queue(1, result, 0); queue(0, listener, 0); }
            else if (result <= 0) close(fd);
            else if (kind == 1) queue(2, fd, result);
            else queue(1, fd, 0);
        }
    }
}
"""


def uring(directory, values):
    write(directory, "server.c", URING)
    subprocess.run(["cc", "-O1", "-o", "server", "server.c", "-luring"], cwd=directory, check=True, capture_output=True)


JAVA = """
import com.sun.net.httpserver.*;
import java.io.*;
import java.net.*;
import java.nio.*;
import java.nio.channels.*;
import java.util.*;
import java.util.concurrent.*;
public class Server {
    static void blocking() throws IOException {
        ServerSocket listener = new ServerSocket(7007);
        while (true) {
            Socket one = listener.accept();
            new Thread(() -> {
                try (one) { one.getInputStream().transferTo(one.getOutputStream()); } catch (IOException e) { }
            }).start();
        }
    }
    static void selecting() throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(7008)).configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        DatagramChannel port = DatagramChannel.open();
        port.bind(new InetSocketAddress(7009)).configureBlocking(false);
        port.register(selector, SelectionKey.OP_READ);
        ByteBuffer data = ByteBuffer.allocateDirect(65536);
        while (true) {
            selector.select();
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext(); ) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.channel() == listener) {
                    SocketChannel one = listener.accept();
                    one.configureBlocking(false);
                    one.register(selector, SelectionKey.OP_READ);
                } else if (key.channel() == port) {
                    data.clear();
                    SocketAddress peer = port.receive(data);
                    data.flip();
                    port.send(data, peer);
                } else {
                    SocketChannel one = (SocketChannel) key.channel();
                    data.clear();
                    if (one.read(data) < 0) { one.close(); continue; }
                    data.flip();
                    while (data.hasRemaining()) one.write(data);
                }
            }
        }
    }
    public static void main(String[] words) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(Integer.parseInt(words[0])), 64);
        byte[] body = ("hello " + "x".repeat(20000)).getBytes();
        server.createContext("/", one -> { one.sendResponseHeaders(200, body.length); one.getResponseBody().write(body); one.close(); });
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
        new Thread(() -> { try { blocking(); } catch (IOException e) { e.printStackTrace(); } }).start();
        selecting();
    }
}
"""

NETTY_SERVER = """
import io.netty.bootstrap.*;
import io.netty.buffer.*;
import io.netty.channel.*;
import io.netty.channel.epoll.*;
import io.netty.channel.nio.*;
import io.netty.channel.socket.nio.*;
import io.netty.handler.codec.http.*;
public class Server {
    public static void main(String[] words) throws Exception {
        boolean epoll = words[1].equals("epoll");
        if (epoll && !Epoll.isAvailable()) throw new Exception(Epoll.unavailabilityCause());
        EventLoopGroup one = epoll ? new EpollEventLoopGroup(1) : new NioEventLoopGroup(1);
        EventLoopGroup all = epoll ? new EpollEventLoopGroup(2) : new NioEventLoopGroup(2);
        Class<? extends ServerChannel> kind = epoll ? EpollServerSocketChannel.class : NioServerSocketChannel.class;
        byte[] body = ("hello " + "x".repeat(20000)).getBytes();
        ChannelFuture web = new ServerBootstrap().group(one, all).channel(kind).childHandler(new ChannelInitializer<Channel>() {
            protected void initChannel(Channel channel) {
                channel.pipeline().addLast(new HttpServerCodec(), new HttpServerKeepAliveHandler(), new HttpObjectAggregator(65536),
                    new SimpleChannelInboundHandler<FullHttpRequest>() {
                        protected void channelRead0(ChannelHandlerContext context, FullHttpRequest request) {
                            DefaultFullHttpResponse answer =
                                new DefaultFullHttpResponse(request.protocolVersion(), HttpResponseStatus.OK, Unpooled.wrappedBuffer(body));
                            answer.headers().setInt("content-length", body.length);
                            context.writeAndFlush(answer);
                        }
                    });
            }
        }).bind(Integer.parseInt(words[0])).sync();
        new ServerBootstrap().group(one, all).channel(kind).childHandler(new ChannelInboundHandlerAdapter() {
            public boolean isSharable() { return true; }
            public void channelRead(ChannelHandlerContext context, Object data) { context.writeAndFlush(data); }
        }).bind(7008).sync();
        web.channel().closeFuture().sync();
    }
}
"""


def java(source, classpath="."):
    def prepare(directory, values):
        write(directory, "Server.java", source)
        subprocess.run(["javac", "-cp", classpath, "Server.java"], cwd=directory, check=True, capture_output=True)
    return prepare


def echo(port, client=ECHO_TCP):
    return [sys.executable, "-c", client, "{server}", str(port), "20"]


ERLANG = """
-module(server).
-export([main/0]).
main() ->
    {ok, Listener} = gen_tcp:listen(7007, [binary, {active, true}, {exit_on_close, false}, {reuseaddr, true}, {backlog, 64}]),
    {ok, Port} = gen_udp:open(7008, [binary, {active, true}]),
    spawn(fun() -> accept(Listener) end),
    datagrams(Port).
datagrams(Port) -> receive {udp, Port, Host, From, Data} -> gen_udp:send(Port, Host, From, Data), datagrams(Port) end.
accept(Listener) ->
    {ok, One} = gen_tcp:accept(Listener),
    Process = spawn(fun() -> echo(One) end),
    gen_tcp:controlling_process(One, Process),
    accept(Listener).
echo(One) ->
    receive
        {tcp, One, Data} -> gen_tcp:send(One, Data), echo(One);
        {tcp_closed, One} -> gen_tcp:close(One)
    end.
"""


def erlang(directory, values):
    write(directory, "server.erl", ERLANG)
    subprocess.run(["erlc", "server.erl"], cwd=directory, check=True, capture_output=True)


BUN = """
Bun.serve({ port: Number(process.argv[2]), hostname: '0.0.0.0', fetch: () => new Response('hello ' + 'x'.repeat(20000)) });
Bun.listen({ hostname: '0.0.0.0', port: 7008, socket: { data(one, data) { one.write(data); } } });
"""

RACK = "run ->(env) { [200, {'content-type' => 'text/plain', 'content-length' => '5'}, ['hello']] }\n"

NET_SERVER = """
package Echo;
use Net::Server::%s;
our @ISA = qw(Net::Server::%s);
sub process_request { my $self = shift; while (sysread(STDIN, my $data, 65536)) { print STDOUT $data; STDOUT->flush; } }
Echo->run(port => 7007, host => '0.0.0.0', ipv => 4, log_level => 1, min_servers => 3, max_servers => 8, min_spare_servers => 2, max_spare_servers => 4);
"""


def file(name, text):
    def prepare(directory, values):
        write(directory, name, text)
    return prepare


ASYNC = """
import asyncio, sys
async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
class Port(asyncio.DatagramProtocol):
    def connection_made(self, transport): self.transport = transport
    def datagram_received(self, data, peer): self.transport.sendto(data, peer)
async def main():
    await asyncio.get_running_loop().create_datagram_endpoint(Port, ('0.0.0.0', 7008))
    await (await asyncio.start_server(echo, '0.0.0.0', 7007)).serve_forever()
asyncio.run(main())
"""

TWISTED = """
from twisted.internet import protocol, reactor
from twisted.web import resource, server
class Echo(protocol.Protocol):
    def dataReceived(self, data): self.transport.write(data)
class Port(protocol.DatagramProtocol):
    def datagramReceived(self, data, peer): self.transport.write(data, peer)
class Page(resource.Resource):
    isLeaf = True
    def render_GET(self, request): return b'hello'
reactor.listenTCP(7007, protocol.Factory.forProtocol(Echo))
reactor.listenUDP(7008, Port())
reactor.listenTCP(8080, server.Site(Page()))
reactor.run()
"""

TORNADO = """
import asyncio, tornado.web
class Page(tornado.web.RequestHandler):
    def get(self): self.write('hello')
tornado.web.Application([('/', Page)])
async def main():
    tornado.web.Application([('/', Page)]).listen(8080)
    await asyncio.Event().wait()
asyncio.run(main())
"""

AIOHTTP = """
from aiohttp import web
async def page(request): return web.Response(text='hello')
app = web.Application()
app.router.add_get('/', page)
web.run_app(app, port=8080)
"""

CHERRYPY = """
import cherrypy
class Page:
    @cherrypy.expose
    def index(self): return 'hello'
cherrypy.config.update({'server.socket_host': '0.0.0.0', 'server.socket_port': 8080, 'log.screen': False})
cherrypy.quickstart(Page())
"""

ZMQ = """
import zmq
one = zmq.Context().socket(zmq.REP)
one.bind('tcp://0.0.0.0:7007')
while True:
    one.send(one.recv())
"""

ZMQ_CLIENT = """
import sys, zmq
one = zmq.Context().socket(zmq.REQ)
one.setsockopt(zmq.RCVTIMEO, 60000)
one.connect(f'tcp://{sys.argv[1]}:{sys.argv[2]}')
for size in (1, 100, 100000) * 20:
    one.send(b'x' * size)
    assert one.recv() == b'x' * size
"""

MONO = """
using System; using System.Net; using System.Net.Sockets; using System.Text; using System.Threading;
class Server {
    static void Main() {
        var listener = new TcpListener(IPAddress.Any, 7007);
        listener.Start(64);
        while (true) {
            var one = listener.AcceptTcpClient();
            ThreadPool.QueueUserWorkItem(delegate {
                var stream = one.GetStream(); var data = new byte[65536]; int count;
                while ((count = stream.Read(data, 0, data.Length)) > 0) stream.Write(data, 0, count);
                one.Close();
            });
        }
    }
}
"""

BUN_PATH = os.environ.get("ABEY_TEST_BUN", "/nonexistent")
NETTY = os.environ.get("ABEY_TEST_NETTY", "/nonexistent")

PROGRAMS = [
    Program("java", ["javac", "ab"], 8080, ["java", "-Xmx200m", "-cp", "{dir}", "Server", "{port}"], [*http(), echo(7007), echo(7008), echo(7009, ECHO_UDP)],
            prepare=java(JAVA)),
    Program("netty-nio", ["javac", "ab", NETTY], 8080, ["java", "-Xmx200m", "-cp", NETTY + "/*:{dir}", "Server", "{port}", "nio"], [*http(), echo(7008)],
            prepare=java(NETTY_SERVER, NETTY + "/*:.")),
    Program("netty-epoll", ["javac", "ab", NETTY], 8080, ["java", "-Xmx200m", "-cp", NETTY + "/*:{dir}", "Server", "{port}", "epoll"], [*http(), echo(7008)],
            prepare=java(NETTY_SERVER, NETTY + "/*:.")),
    Program("erlang", ["erl", "erlc"], 7007, ["erl", "-noshell", "-noinput", "-pa", "{dir}", "-s", "server", "main"], [echo_tcp, echo(7008, ECHO_UDP)], prepare=erlang,
            env={"HOME": "{dir}"}),
    Program("bun", [BUN_PATH, "ab"], 8080, [BUN_PATH, "{dir}/server.js", "{port}"], http(), prepare=file("server.js", BUN)),
    Program("puma", ["puma", "ab"], 8080, ["puma", "-b", "tcp://0.0.0.0:{port}", "-t", "2:4", "{dir}/config.ru"], http(), prepare=file("config.ru", RACK)),
    Program("puma-cluster", ["puma", "ab"], 8080, ["puma", "-w", "2", "-b", "tcp://0.0.0.0:{port}", "-t", "2:4", "{dir}/config.ru"], http(), prepare=file("config.ru", RACK)),
    Program("thin", ["thin", "ab"], 8080, ["thin", "-a", "0.0.0.0", "-p", "{port}", "-R", "{dir}/config.ru", "start"], http(), prepare=file("config.ru", RACK)),
    Program("unicorn", ["unicorn", "ab"], 8080, ["unicorn", "-l", "0.0.0.0:{port}", "{dir}/config.ru"], http()[:2], prepare=file("config.ru", RACK)),
    Program("perl-prefork", ["/usr/share/perl5/Net/Server/PreFork.pm"], 7007, ["/usr/bin/perl", "{dir}/server.pl"], [echo_tcp],
            prepare=file("server.pl", NET_SERVER % ("PreFork", "PreFork"))),
    Program("perl-fork", ["/usr/share/perl5/Net/Server/Fork.pm"], 7007, ["/usr/bin/perl", "{dir}/server.pl"], [echo_tcp], prepare=file("server.pl", NET_SERVER % ("Fork", "Fork"))),
    Program("perl-prefork-simple", ["/usr/share/perl5/Net/Server/Fork.pm"], 7007, ["/usr/bin/perl", "{dir}/server.pl"], [echo_tcp],
            prepare=file("server.pl", NET_SERVER % ("PreForkSimple", "PreForkSimple"))),
    Program("asyncio", ["python3"], 7007, ["python3", "{dir}/server.py"], [echo_tcp, echo(7008, ECHO_UDP)], prepare=file("server.py", ASYNC)),
    Program("twisted", [f"{VENV}/bin/twist", "ab"], 8080, [f"{VENV}/bin/python", "{dir}/server.py"], [*http(), echo(7007), echo(7008, ECHO_UDP)], prepare=file("server.py", TWISTED)),
    Program("tornado", [f"{VENV}/bin/twist", "ab"], 8080, [f"{VENV}/bin/python", "{dir}/server.py"], http(), prepare=file("server.py", TORNADO)),
    Program("aiohttp", [f"{VENV}/bin/twist", "ab"], 8080, [f"{VENV}/bin/python", "{dir}/server.py"], http(), prepare=file("server.py", AIOHTTP)),
    Program("cherrypy", [f"{VENV}/bin/cherryd", "ab"], 8080, [f"{VENV}/bin/python", "{dir}/server.py"], http(), prepare=file("server.py", CHERRYPY)),
    Program("zeromq", [f"{VENV}/bin/twist"], 7007, [f"{VENV}/bin/python", "{dir}/server.py"], [[f"{VENV}/bin/python", "-c", ZMQ_CLIENT.replace("{", "{{").replace("}", "}}"), "{server}", "{port}"]],
            prepare=file("server.py", ZMQ)),
    Program("hypercorn", [f"{VENV}/bin/hypercorn", "ab"], 8080, [f"{VENV}/bin/hypercorn", "-b", "0.0.0.0:{port}", "-w", "2", "app:app"], http(), prepare=asgi),
    Program("granian", [f"{VENV}/bin/granian", "ab"], 8080, [f"{VENV}/bin/granian", "--interface", "asgi", "--host", "0.0.0.0", "--port", "{port}", "--workers", "2", "app:app"],
            http(), prepare=asgi),
    Program("daphne", [f"{VENV}/bin/daphne", "ab"], 8080, [f"{VENV}/bin/daphne", "-b", "0.0.0.0", "-p", "{port}", "app:app"], http(), prepare=asgi),
    Program("waitress", [f"{VENV}/bin/waitress-serve", "ab"], 8080, [f"{VENV}/bin/waitress-serve", "--listen=0.0.0.0:{port}", "app:app"], http(), prepare=wsgi),
    Program("gunicorn-gevent", [f"{VENV}/bin/cherryd", "ab"], 8080, [f"{VENV}/bin/gunicorn", "-b", "0.0.0.0:{port}", "-k", "gevent", "-w", "2", "app:app"], http(), prepare=wsgi),
    Program("gunicorn-threads", [f"{VENV}/bin/gunicorn", "ab"], 8080, [f"{VENV}/bin/gunicorn", "-b", "0.0.0.0:{port}", "-k", "gthread", "--threads", "4", "-w", "2", "app:app"],
            http(), prepare=wsgi),
    Program("mono", ["mono", "mcs"], 7007, ["mono", "{dir}/server.exe"], [echo_tcp],
            prepare=lambda directory, values: subprocess.run(["mcs", write(directory, "server.cs", MONO)], cwd=directory, check=True, capture_output=True) and None),
    Program("node", ["node", "ab"], 8080, ["node", "{dir}/server.js"], NODE, prepare=node),
    Program("node24", [NODE24, "ab"], 8080, [NODE24, "{dir}/server.js"], NODE, prepare=node),
    Program("uvicorn-uvloop", [f"{VENV}/bin/uvicorn", "ab"], 8080,
            [f"{VENV}/bin/uvicorn", "--loop", "uvloop", "--host", "0.0.0.0", "--port", "{port}", "app:app"], http(), prepare=asgi),
    Program("uvicorn-workers", [f"{VENV}/bin/uvicorn", "ab"], 8080,
            [f"{VENV}/bin/uvicorn", "--loop", "asyncio", "--workers", "3", "--host", "0.0.0.0", "--port", "{port}", "app:app"], http(),
            prepare=asgi),
    Program("gunicorn", [f"{VENV}/bin/gunicorn", "ab"], 8080,
            [f"{VENV}/bin/gunicorn", "-b", "0.0.0.0:{port}", "-w", "4", "app:app"], http()[:2], prepare=wsgi),
    Program("go-static", ["go", "ab"], 8080, ["{dir}/server", "{port}"],
            [*http(), [sys.executable, "-c", ECHO_TCP, "{server}", "7008", "20"]], prepare=go(False)),
    Program("go-cgo", ["go", "ab", "cc"], 8080, ["{dir}/server", "{port}"],
            [*http(), [sys.executable, "-c", ECHO_TCP, "{server}", "7008", "20"]], prepare=go(True)),
    Program("io_uring", ["cc", "/usr/include/liburing.h"], 7007, ["{dir}/server", "{port}"], [echo_tcp], prepare=uring),
]
