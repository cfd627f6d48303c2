"""Implement ``stallwatch redact``: print a file as Stallwatch would show it, or list its secrets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from stallwatch.cli.context import App, any_key, print_line, print_notices, progress_bar

_MOST = 1024 * 1024  #: maximum number of bytes of a line that are masked as one piece
_BETWEEN_WORDS = (b" ", b"\t", b'"', b"'", b",", b";", b"&")


@click.command()
@click.argument("path", metavar="FILE")
@click.option("--list", "listed", is_flag=True, help="List the lines with secrets, without the secrets.")
@click.pass_obj
def redact(app: App, path: str, listed: bool) -> None:
    """Print a file with its secrets masked, in the form in which Stallwatch stores, shows, and sends text.

    FILE is a file, an archive (.gz .xz .zst .zip .tar.*), or - for standard input.

    \b
    stallwatch redact train.log > masked.log
    stallwatch redact --list train.log

    --list prints the file, the line number, and the kind of each secret. It does not list paths of home
    folders, which Stallwatch shortens.

    Exit code: 2 if FILE cannot be read or the configuration has a mistake; otherwise 0.
    """
    from stallwatch_logs.inputs import InputProblem
    from stallwatch_logs.log_files import ProgressReader, expand
    from stallwatch_rules.text.redact import LineMasker, mask_key_end, secrets_in

    app.config(any_key)
    problems: list[InputProblem]
    files, problems = expand([path])
    with progress_bar() as progress:
        reader = ProgressReader(files, progress)
        for file in files:
            masker = LineMasker()
            for number, raw in split_lines(reader.chunks(file, problems, _MOST)):
                text = raw.decode("utf-8", "surrogateescape")
                after_key = masker.after_key
                clean = masker(text)
                if not listed:
                    click.echo(clean.encode("utf-8", "surrogateescape"), nl=False)
                elif clean != text:
                    found = list(secrets_in(text))
                    if after_key and not masker.after_key and mask_key_end(text) != text:
                        found.append(("private-key-end", 1))
                    for kind, count in found:
                        print_line(f"{file.name}:{number}: {kind}{f' ({count})' if count > 1 else ''}")
    print_notices(problems)
    if problems:
        raise click.exceptions.Exit(2)


def split_lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the number and text of each line. A line that is too long is split between words."""
    number, rest = 1, b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield number, line + b"\n"
            number += 1
        while len(rest) > _MOST:
            cut = max(rest.rfind(mark, 0, _MOST) for mark in _BETWEEN_WORDS) + 1 or _MOST
            yield number, rest[:cut]
            rest = rest[cut:]
    if rest:
        yield number, rest
