"""Typical mistakes in Python and on the command line, and the page that lists their messages.

`python tests/test_mistakes.py > docs/reference/mistakes.md` writes the page again.
"""

import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from typer.testing import CliRunner

import diffprior as dp
from diffprior.cli import app

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "mistakes.md"
HEAD = """# Typical mistakes

Messages name the argument, what was expected, what was passed, and a fix. These are the messages of
{count} typical mistakes. `table` has the columns campaign, age, device and paid; `prior` is of two
parameters, `bandit` and `items` start from it, and `model` was learned from `table`.
"""
PYTHON = (
    "dp.DiffusionPriors",
    "dp.learn('visits.csv', dp.Linear(), task='campaign', reward='paid')",
    "dp.learn(table, dp.Linear())",
    "dp.learn(table, dp.Linear(), task='campain', reward='paid')",
    "dp.learn(table, dp.Linear(), task=table['campaign'], reward='paid')",
    "dp.learn(table, dp.Linear(), task='campaign', reward='campaign')",
    "dp.learn(table, dp.Linear(), task='age', reward='paid')",
    "dp.learn(table, dp.Linear(), task='campaign', reward='device')",
    "dp.learn(table, dp.Linear, task='campaign', reward='paid')",
    "dp.learn(table, 'normal', task='campaign', reward='paid')",
    "dp.learn(table, dp.Logistic(), task='campaign', reward='paid')",
    "dp.learn(table[:15], dp.Linear(), task='campaign', reward='paid')",
    "dp.learn(table[:0], dp.Linear(), task='campaign', reward='paid')",
    "dp.learn(missing, dp.Linear(), task='campaign', reward='paid')",
    "dp.learn(dated, dp.Linear(), task='campaign', reward='paid')",
    "dp.Logs(table['campaign'], table[['age', 'device']], table['paid'])",
    "dp.Logs(table['campaign'], np.ones((50, 2)), table['paid'])",
    "dp.Encoder(table)",
    "dp.DiffusionPrior.fit(np.ones(10))",
    "dp.DiffusionPrior.fit(np.ones((3, 2)))",
    "dp.DiffusionPrior.fit(samples, preset='papers')",
    "dp.GaussianPrior(np.zeros(2), np.ones(2))",
    "dp.Linear(noise_std=-1)",
    "dp.Bandit(prior, dp.Linear())",
    "dp.Bandit(prior)",
    "dp.Bandit(dp.Linear(1.0), prior)",
    "dp.Bandit(model, dp.Linear(1.0))",
    "dp.Bandit('shop.model', dp.Linear(1.0))",
    "bandit.decide([1.0, 2.0])",
    "bandit.decide(np.ones((3, 4)))",
    "bandit.decide([{'age': 1.0, 'device': 'web'}])",
    "bandit.update(1, 1.0)",
    "bandit.update(bandit.decide(np.eye(2)), 1.0)",
    "bandit.update([1.0, 0.0], 'yes')",
    "bandit.update([1.0, 0.0], None)",
    "model.bandit().decide({'age': 1.0, 'device': 'web'})",
    "model.bandit().decide([{'age': 1.0}])",
    "model.bandit().decide([[1.0, 'web']])",
    "model.bandit(attributes={'category': 'toys'})",
    "items.choose([1.0, 2.0])",
    "items.add(['a', 'a'])",
    "prior.sample(0, 10)",
    "dp.load('shop.modle')",
    "dp.load('logs.csv')",
    "dp.simulate('corners', {'TS': prior})",
    "dp.simulate(dp.synthetic('cross'), [prior])",
)
SHELL = (
    "lern logs.csv",
    "learn logs.csv --taks campaign",
    "learn logs.csv --likelihood linear -o shop.model",
    "learn logs.xlsx --task campaign --reward paid --likelihood linear -o shop.model",
    "learn logs.csv --task campaign --reward paid --likelihood linear",
    "learn logs.csv --task campaign --reward paid -o shop.model",
    "learn logs.csv --task campaign --reward paid --likelihood normal -o shop.model",
    "learn logs.csv --task campaign --reward paid --likelihood linear --features ag -o shop.model",
    "learn logs.csv --task campaign --reward paid --likelihood linear -o missing/shop.model",
    "learn logs.csv --task campaign --reward paid --likelihood linear -o logs.csv",
    "learn logs.csv --task campaign --reward paid --likelihood linear -o shop.model --report a.pdf",
    "evaluate shop.model",
    "evaluate logs.csv shop.model",
    "fit logs.csv -o shop.prior",
    "serve",
    "serve shop.model",
    "serve --model shop.model",
    "serve --model shop=shop.prior",
    "serve --model shop=shop.model --host 0.0.0.0",
    "serve --model shop=shop.model --half-life never",
)


def things() -> dict[str, Any]:
    """What the mistakes are made with; files in the current folder."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"campaign": np.repeat(np.arange(12), 5), "age": rng.normal(size=60)})
    table["device"] = np.where(rng.random(60) < 0.5, "ios", "web")
    table["paid"] = rng.normal(size=60).round(2)
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    encoder = dp.Logs.read(table, task="campaign", reward="paid").encoder
    wide = dp.GaussianPrior(np.zeros(encoder.dim), np.eye(encoder.dim))
    table.to_csv("logs.csv", index=False)
    Path("logs.xlsx").write_bytes(b"PK")
    prior.save("shop.prior")
    dp.Model(prior, dp.Linear(1.0)).save("shop.model")
    return {
        "dp": dp,
        "np": np,
        "table": table,
        "missing": table.assign(paid=table["paid"].where(table["campaign"] != 3)),
        "dated": table.assign(day=pd.Timestamp("2026-01-31")),
        "samples": rng.normal(size=(50, 2)),
        "prior": prior,
        "bandit": dp.Bandit(prior, dp.Linear(1.0), seed=0),
        "items": dp.Items(prior, dp.Linear(1.0), seed=0),
        "model": dp.Model(wide, dp.Linear(1.0), encoder),
    }


def message_of(code: str, names: dict[str, Any]) -> str:
    """The message of the error that an expression raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.EncodingWarning)
        try:
            eval(code, names)
        except (AttributeError, OSError, ValueError) as error:
            return str(error)
    raise AssertionError(f"no error: {code}")


def output_of(command: str) -> str:
    """What a command that fails prints, without usage and borders, on one line."""
    result = CliRunner().invoke(app, command.split(), env={"COLUMNS": "200"})
    assert result.exit_code == 2, command
    lines = [line.strip(" │") for line in result.output.splitlines() if "──" not in line]
    told = [line for line in lines if not re.match(r"Usage|Try|likelihood:|$", line)]
    return " ".join(told).removeprefix("error: ")


def table_of(title: str, rows: dict[str, str]) -> str:
    """A table in Markdown; what Markdown would read as markup is escaped."""
    safe = {code: re.sub(r"([*<|{])", r"\\\1", message) for code, message in rows.items()}
    lines = [f"| `{code}` | {message} |" for code, message in safe.items()]
    return "\n".join([f"\n## {title}\n", "| mistake | message |", "|---|---|", *lines, ""])


def page() -> str:
    """The page, from messages as they are printed now."""
    names = things()
    python = {code: message_of(code, names) for code in PYTHON}
    shell = {f"diffprior {command}": output_of(command) for command in SHELL}
    head = HEAD.format(count=len(python) + len(shell))
    return head + table_of("In Python", python) + table_of("On the command line", shell)


def test_messages_are_as_the_page_says() -> None:
    """In a process of its own, where annotations are not checked as in tests."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_ENABLE_X64": "0"}
    command = [sys.executable, __file__]
    written = subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout
    assert written == PAGE.read_text(encoding="utf-8")
    messages = [line.split(" | ", 1)[1] for line in written.splitlines() if line.startswith("| `")]
    assert len(messages) >= 40
    for message in messages:
        whole = re.match(
            r"`\w+`: (expected .*, got .*|expected .* none.*|.* is not a .*); `?\w", message
        )
        usage = re.match(r"No such|Missing (option|argument)|module .* did you mean", message)
        assert whole or usage, message


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(page(), end="")
