"""Classify the output that follows the message about a failed start.

A failed start might print no traceback, but only a message from a shell or a launcher, or a usage message.
However, scripts also call tools that are not installed on the machine, and continue without them. The
failure ended the start only if all output after its message is of the kinds that this module lists.
"""

from __future__ import annotations

from typing import Literal

from stallwatch_rules.text.lazy import lazy

#: State of a start. "" means no failure, and "nothing" means a failure without later output. "help" means a
#: failure that is followed only by help, and "output" means a failure after which the program continued.
Below = Literal["", "nothing", "help", "output"]

_HELP = lazy(r"(?i)^\s+-h,? --help\b|show this (?:help )?message and exit")
_REASON = lazy(r"(?i)^(?:[\w.+~/-]{1,200}: )?(?:fatal )?error: ")
_MEANT = lazy(
    # Indented parts of a usage text or a list, headings, and separators between paragraphs.
    r"^\s|(?i:^[\w ]{0,30}(?:options|arguments|commands|flags|examples?|usage|shells are|failures):$)"
    r"|^[-=*_+~#]{3,}$"
    # Other messages from shell scripts and launchers.
    r"|^[\w.+~/-]{1,200}[:：] ?(?:line |行 ?|第 ?)?\d+(?: ?行)?[:：]|^-?(?:ba|z|da|k)?sh: "
    r"|^(?:srun|sbatch|salloc|slurmstepd(?:-\S{1,60})?|mpirun|mpiexec|prterun|docker|make(?:\[\d+\])?"
    r"|conda|sudo|env|kubectl): |^ERROR conda\.cli\.|^Primary job +terminated|\bFAILED$"
    # Output of the DeepSpeed launcher.
    r"|^Root Cause \(first|^\[\d+\]:$|\[launch\.py:\d+:sigkill_handler\] "
    # Sentences about where to find more help.
    r"|^(?:Try|See|Run|Use|Type|To|Also|Please|For|You|It is also|IMPORTANT|The following module)\b"
    r".{0,120}(?:help|usage|`|conda|module|shell|spider|cache|information|documentation)"
    # Messages from Open MPI about programs and slots (help-orterun.txt and help-orte-rmaps-base.txt in 4.1).
    r"|^(?:or execute an executable|Executable: |Node: |while attempting to start process)"
    r"|\bslots?\b|Open MPI|^(?:available for use|launch a process|launch\.|environment in which"
    r"|of hardware threads|--use-hwthread)"
    # The last lines that scripts print.
    r"|^(?:real|user|sys)\s+\d|^\w{3} \w{3} [ \d]?\d \d\d:\d\d:\d\d "
    r"|(?i:^\W*(?:job|script)\b.{0,60}\b(?:finished|ended|completed|done|failed|exit))"
    r"|(?i:^\W*(?:exit|return) (?:code|status)\b|^\W*end(?:ed)?(?: (?:time|at|date))?\b *[:=@])"
)


def next_state(text: str, before: Below) -> Below:
    """Return the state after one more line of output. `before` is the state before this line."""
    if _REASON.search(text):
        return "nothing"
    if _HELP.search(text):
        return "help"
    return before if not text or text.isspace() or _MEANT.search(text) else "output"
