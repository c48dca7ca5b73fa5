#!/usr/bin/env python3
"""embedded_service_operations_test.py PROGRAM: the files of examples/embedded_service/operations with a real Prometheus."""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

from processes import PATIENCE, Program, main, run

OPERATIONS = pathlib.Path(__file__).parents[2] / "examples/embedded_service/operations"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Operations(unittest.TestCase):
    def need(self, program):
        if shutil.which(program) is None:
            self.skipTest(f"{program} is not installed; ./dev test --full installs it")

    def test_systemd_accepts_the_unit(self):
        self.need("systemd-analyze")
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder, "market.service")
            # systemd-analyze rejects a program that does not exist.
            unit.write_text((OPERATIONS / "market.service").read_text().replace("/usr/local/bin/embedded_service", PROGRAM))
            checked = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit],
                                     capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_promtool_accepts_the_files(self):
        self.need("promtool")
        subprocess.run(["promtool", "check", "config", OPERATIONS / "prometheus.yml"], check=True, stdout=subprocess.DEVNULL)

    def service(self, *arguments, env=None):
        service = Program(PROGRAM, *arguments, env=env)
        self.addCleanup(service.__exit__)
        return service.wait_for(r"listens at (\S+?),? ?(?:probes and metrics at (\S+))?$")

    def ask(self, path, **parameters):
        address = f"http://127.0.0.1:{self.port}/api/v1/{path}?" + urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
            return json.load(answer)["data"]

    def query(self, expression):
        """The labels of each series that has a value."""
        return [series["metric"] for series in self.ask("query", query=expression)["result"] if series["value"][1] != "NaN"]

    def until(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.2)

    def test_every_panel_of_the_dashboard_has_data(self):
        self.need("prometheus")
        rates = self.service("rates", "tcp://127.0.0.1:0")[1]
        market, http = self.service("market", "tcp://127.0.0.1:0", rates, env={"WEFT_METRICS": "127.0.0.1:0"}).groups()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        config = (OPERATIONS / "prometheus.yml").read_text()
        config = config.replace("127.0.0.1:9464", http).replace("scrape_interval: 15s", "scrape_interval: 1s")
        pathlib.Path(folder.name, "prometheus.yml").write_text(config)
        shutil.copy(OPERATIONS / "alerts.yml", folder.name)
        self.port = free_port()
        prometheus = Program("prometheus", f"--config.file={folder.name}/prometheus.yml", f"--storage.tsdb.path={folder.name}/data",
                             f"--web.listen-address=127.0.0.1:{self.port}")
        self.addCleanup(prometheus.__exit__)
        prometheus.wait_for("Server is ready to receive web requests")

        def traffic():
            for currency, status in ("EUR", 0), ("XYZ", 1):  # the second call fails
                self.assertEqual(run(PROGRAM, "convert", market, "10", currency)[0], status)

        traffic()
        self.until(lambda: self.query('weft_served_failures_total{method="market.convert"}'))
        traffic()  # so that the counters grow while Prometheus scrapes
        dashboard = json.loads((OPERATIONS / "grafana.json").read_text())
        legends = {target["expr"]: target["legendFormat"] for panel in dashboard["panels"] for target in panel["targets"]}
        del legends['weft_layer{agent=~"$agent"}']  # this program has only the RPC layer
        found = {}

        def complete():
            for expression in set(legends) - set(found):
                if series := self.query(expression.replace("$agent", "market").replace("$__rate_interval", "1m")):
                    found[expression] = series
            return len(found) == len(legends)

        try:
            self.until(complete)
        except AssertionError:
            self.fail("no data for: " + "; ".join(sorted(set(legends) - set(found))))
        for expression, series in found.items():
            for labels in series:
                self.assertLessEqual(set(re.findall(r"{{(\w+)}}", legends[expression])), set(labels), expression)
        choices = next(variable for variable in dashboard["templating"]["list"] if variable["name"] == "agent")
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", choices["query"]).groups()
        self.assertEqual(self.ask(f"label/{label}/values", **{"match[]": metric}), ["market"])

    def test_the_alerts_name_metrics_that_exist(self):
        page = pathlib.Path(__file__).parents[2] / "docs/observability.md"
        # "`weft_calls_received_total`, `_made_total`": the second one has the first part of the one before it
        known = set(re.findall(r"weft_\w+", page.read_text()))
        for name in set(re.findall(r"weft_\w+", (OPERATIONS / "alerts.yml").read_text())):
            stem = re.sub(r"_(count|bucket|sum)$", "", name)
            self.assertTrue(stem in known or "`_" + stem.split("_", 2)[2] + "`" in page.read_text(), name)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    main()
