#!/usr/bin/env python3
"""dash_program_test.py WEFT AGENT: `weft dash` against a test agent in another process, by HTTP and in a browser."""
import hashlib
import html
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from processes import PATIENCE, Program, eventually, main  # noqa: E402


class Agent(Program):
    def __init__(self, address="tcp://127.0.0.1:0"):
        super().__init__(AGENT, "--gauges", address)
        self.address = self.wait_for(r"listens at (\S+)")[1]


class Dash(Program):
    def __init__(self, *arguments):
        super().__init__(WEFT, "dash", "-i", "100ms", *arguments)
        self.url = self.wait_for(r"^(http://\S+/)$")[1].replace("0.0.0.0", "127.0.0.1")

    def get(self, path="", headers=None, opener=None):
        """Status, headers and body."""
        request = urllib.request.Request(self.url + path, headers=headers or {})
        try:
            with (opener or urllib.request.build_opener()).open(request, timeout=PATIENCE) as reply:
                return reply.status, reply.headers, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read().decode()

    def data(self, holds):
        """The data, once holds(data) is true."""
        found = {}

        def look():
            status, _, body = self.get("data.json")
            found.update(json.loads(body) if status == 200 else {})
            return status == 200 and holds(found)

        eventually("the data changes", look)
        return found


def logged_in(url, user, password):
    passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    passwords.add_password(None, url, user, password)
    return urllib.request.build_opener(urllib.request.HTTPDigestAuthHandler(passwords))


class DashTest(unittest.TestCase):
    def setUp(self):
        self.agent = self.enterContext(Agent())

    def dash(self, *arguments):
        return self.enterContext(Dash(self.agent.address, *arguments))

    def test_serves_the_page_and_its_data(self):
        dash = self.dash("--listen", "127.0.0.1:0")
        status, headers, page = dash.get()
        self.assertEqual(status, 200)
        self.assertEqual(headers["Content-Type"], "text/html; charset=utf-8")
        self.assertIn("<title>weft dash</title>", page)
        self.assertNotRegex(page, r"""(src|href)=["'](?!data:)""", "the page loads nothing else")
        data = dash.data(lambda data: data["rates"])
        [member] = data["members"]
        self.assertEqual((member["name"], member["state"], member["address"]),
                         ("tested\x1b[1m", "alive", self.agent.address))
        [odd, loss] = data["gauges"]
        self.assertEqual((odd["name"], loss["name"]), ("<b>odd</b>", "loss"))
        self.assertEqual(loss["lines"][0]["points"][0][1], 0.5)
        self.assertEqual(dash.get("elsewhere")[0], 404)

    def test_an_agent_that_dies_is_shown_and_its_successor_too(self):
        dash = self.dash("--listen", "127.0.0.1:0", "--timeout", "500ms")
        dash.data(lambda data: data["members"][0]["state"] == "alive")
        self.agent.process.send_signal(signal.SIGKILL)
        data = dash.data(lambda data: data["members"][0]["state"] == "no answer")
        self.assertTrue(data["members"][0]["note"])
        self.agent.process.wait()
        self.enterContext(Agent(self.agent.address))
        data = dash.data(lambda data: any(member["state"] == "alive" for member in data["members"]))
        self.assertEqual([member["state"] for member in data["members"] if member["state"] != "alive"], ["lost"])

    def test_refuses_the_names_of_other_hosts(self):
        dash = self.dash("--listen", "127.0.0.1:0")
        port = dash.url.rsplit(":", 1)[1].rstrip("/")
        for path in "", "data.json":
            self.assertEqual(dash.get(path, {"Host": f"evil.example:{port}"})[0], 403)
        self.assertEqual(dash.get("", {"Host": f"localhost:{port}"})[0], 200)

    def test_off_loopback_it_requires_a_password(self):
        for address in "0.0.0.0:0", "192.0.2.1:0":
            ended = subprocess.run([WEFT, "dash", self.agent.address, "--listen", address], capture_output=True, text=True,
                                   timeout=PATIENCE)
            self.assertEqual((ended.returncode, ended.stdout), (2, ""))
            self.assertIn("--password-file", ended.stderr)

    def test_lets_in_users_of_the_password_file(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        file = pathlib.Path(folder, "passwords")
        file.write_text("anna:weft:" + hashlib.md5(b"anna:weft:secret").hexdigest() + "\n")
        dash = self.dash("--listen", "0.0.0.0:0", "--password-file", str(file))
        status, headers, body = dash.get()
        self.assertEqual((status, body), (401, ""))
        self.assertIn("Digest", headers["WWW-Authenticate"])
        for user, password in ("anna", "wrong"), ("bert", "secret"):
            self.assertEqual(dash.get("data.json", opener=logged_in(dash.url, user, password))[0], 401)
        self.assertEqual(dash.get(opener=logged_in(dash.url, "anna", "secret"))[0], 200)
        eventually("there is data",
                   lambda: dash.get("data.json", opener=logged_in(dash.url, "anna", "secret"))[0] == 200)

    def test_names_the_password_file_that_has_no_user(self):
        ended = subprocess.run([WEFT, "dash", self.agent.address, "--listen", "127.0.0.1:0", "--password-file", os.devnull],
                               capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(ended.returncode, 2)
        self.assertIn("htdigest", ended.stderr)

    @unittest.skipUnless(shutil.which("chromium"), "no program chromium (Debian: chromium)")
    def test_a_browser_draws_the_members_and_a_chart_of_the_loss(self):
        dash = self.dash("--listen", "127.0.0.1:0")
        dash.data(lambda data: len(data["gauges"][1]["lines"][0]["points"]) > 1)
        profile = self.enterContext(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        ended = subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
                                "--virtual-time-budget=3000", "--dump-dom", dash.url],
                               capture_output=True, text=True, timeout=2 * PATIENCE)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        page = re.sub(r"<script>.*?</script>", "", ended.stdout, flags=re.DOTALL)
        self.assertIn("1 of 1 members alive", page)
        self.assertIn(self.agent.address, page)
        self.assertRegex(page, r'<svg[^>]* aria-label="loss">.*?<polyline[^>]* points="[\d., ]+"')
        self.assertNotIn("not updated", page)
        self.assertNotIn("<b>odd</b>", page)  # a name from a peer is untrusted text
        self.assertIn(html.escape("<b>odd</b>"), page)


if __name__ == "__main__":
    WEFT, AGENT = sys.argv.pop(1), sys.argv.pop(1)
    main()
