"""A page of another origin, in a real Chromium, against a service without tokens on loopback."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Browser

from browser.browsing import serving
from diffprior.service.settings import Settings
from service.shop import Shop, add_models

SETTINGS = Settings(likelihood="linear", likelihood_options={"noise_std": 0.5}, propensity_draws=4)
WRITES = """async ([address, id]) => {
    const found = [];
    for (const path of [`/v1/decisions/${id}/cancel`, '/v1/models/shop/rollback',
                        '/v1/models/shop/tasks/evil/decisions']) {
        for (const mode of ['no-cors', 'cors']) {
            const body = '{"features": [[0, 0, 0]]}';
            const options = {method: 'POST', mode, body, headers: {'Content-Type': 'text/plain'}};
            try { found.push((await fetch(address + path, options)).type); }
            catch (error) { found.push('blocked'); }
        }
    }
    return found;
}"""
READS = """async address => {
    const found = [];
    for (const path of ['/', '/v1/models', '/metrics', '/docs', '/health']) {
        for (const mode of ['no-cors', 'cors']) {
            try { found.push((await (await fetch(address + path, {mode})).text()).length); }
            catch (error) { found.push('blocked'); }
        }
    }
    return found;
}"""
FRAMES = """address => ['/', '/docs', '/v1/models', '/tasks/shop/campaign-000'].map(path => {
    const frame = document.createElement('iframe');
    frame.src = address + path;
    document.body.append(frame);
})"""
FORM = """address => {
    const form = document.createElement('form');
    form.method = 'POST';
    form.action = address + '/v1/models/shop/rollback';
    document.body.append(form);
    form.submit();
}"""


class Evil(BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title><body>")

    def log_message(self, *_: object) -> None:
        pass


def test_a_page_of_another_origin_can_neither_write_nor_read_nor_frame(
    browser: Browser, tmp_path: Path
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with serving(tmp_path / "log.sqlite", required=False) as (engine, address):
        add_models(engine, SETTINGS)
        Shop(engine, 1).run(3)
        versions = [(v.version, v.share) for v in engine.catalog.versions_of("shop")]
        context = browser.new_context()
        own = context.request
        before = own.get(f"{address}/v1/models/shop/tasks").text()
        decided = own.post(
            f"{address}/v1/models/shop/tasks/own/decisions",
            data={"features": [[0.0] * engine.catalog.versions_of("shop")[0].dim]},
        ).json()
        before = own.get(f"{address}/v1/models/shop/tasks").text()
        for host in ("127.0.0.1", "localhost"):  # the same site on another port, and another site
            page = context.new_page()
            page.goto(f"http://{host}:{server.server_port}/")
            found = page.evaluate(WRITES, [address, decided["decision_id"]])
            assert set(found) <= {"opaque", "blocked"}
            assert set(page.evaluate(READS, address)) <= {0, "blocked"}
            page.evaluate(FRAMES, address)
            page.wait_for_timeout(500)
            framed = [frame.url for frame in page.frames[1:] if address in frame.url]
            assert len(page.frames) == 5 and not framed, framed
            page.evaluate(FORM, address)
            page.wait_for_timeout(500)
            assert "another origin" in page.content()
            page.close()
        rebound = own.get(f"{address}/v1/models", headers={"Host": "evil.example"})
        assert rebound.status == 421
        assert versions == [(v.version, v.share) for v in engine.catalog.versions_of("shop")]
        assert own.get(f"{address}/v1/models/shop/tasks").text() == before
        read = own.get(f"{address}/v1/decisions/{decided['decision_id']}").json()
        assert read["status"] == "active"
        context.close()
    server.shutdown()
    server.server_close()
