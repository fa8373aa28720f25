"""What a reader of a report does next: the same with data of one's own."""

from diffprior.reporting.page import Block, Code, Heading, Text

_COMMANDS = """\
# past tasks' parameters, a row each, columns with names:
diffprior fit tasks.csv -o tasks.dprior --plot tasks.png

# and decide in a new task, in Python:
import diffprior as dp
bandit = dp.Bandit(dp.DiffusionPrior.load("tasks.dprior"), dp.Linear(noise_std=1.0))
decision = bandit.decide(features)                   # features: (K, d), one row for each action
bandit.update(features[decision.action], reward)"""


def next_steps() -> list[Block]:
    """The last part of a report."""
    text = (
        "Write down the parameters of tasks that you have solved, and look at the picture of what "
        "is learned from them. Where a mixture does as well above, it will on data like these."
    )
    return [Heading("With data of your own"), Text(text), Code(_COMMANDS)]
