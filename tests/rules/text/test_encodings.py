"""Encodings of logs: guessed from the bytes; holes are dropped, and binary data is detected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stallwatch_rules.text.encodings import looks_binary

LineTexts = Callable[[bytes], list[str]]


def test_encodings_are_detected(line_texts: LineTexts) -> None:
    assert line_texts("忽略输入\nloss，0.5\n".encode("gbk")) == ["忽略输入", "loss，0.5"]
    assert line_texts("héllo\nx".encode("utf-16")) == ["héllo", "x"]
    assert line_texts("héllo\n".encode("utf-16-be").join([b"\xfe\xff", b""])) == ["héllo"]
    assert line_texts(b"\xef\xbb\xbfhello\n") == ["hello"]
    assert line_texts(b"good \xf0\x9f bad\xff\n") == ["good � bad�"]
    assert line_texts(b"a\n") == ["a"]  # shorter than a byte order mark


@pytest.mark.parametrize(
    "text",
    [
        "Modèle chargé, l'entraînement a déjà commencé à l'étape 3",
        "fichier créé",
        "Größe des Stapels: 8, Übergröße",
        "El año pasado «epoch» señal",
        "25 µs – 3 €",
        "étape 5 : perte 0,5 à 80 °C",
        "loss 0.5 é",
    ],
)
def test_western_letters_are_not_taken_for_chinese(line_texts: LineTexts, text: str) -> None:
    assert line_texts(text.encode("cp1252") + b"\n") == [text]
    long = (text + " ") * 3000
    assert line_texts(long.encode("cp1252") + b"\n")[0].startswith(text)


@pytest.mark.parametrize(
    "text", ["版本", "loss损失3", "用Adam和SGD训练", "朱镕基", "第 3 步：损失为 0.5，学习率 1e-4", "未恢复"]
)
def test_chinese_is_not_taken_for_western_text(line_texts: LineTexts, text: str) -> None:
    assert line_texts(text.encode("gbk") + b"\n") == [text]


def test_utf8_with_an_error_stays_utf8(line_texts: LineTexts) -> None:
    raw = "训练开始，加载模型".encode()
    assert line_texts(raw[:-1] + b" ok\n") == ["训练开始，加载模� ok"]


def test_holes_of_a_truncated_file_are_dropped(line_texts: LineTexts) -> None:
    assert line_texts(b"\0" * 5000 + b"after\n") == ["after"]


@pytest.mark.parametrize(
    ("head", "binary"),
    [
        (b"plain text\n" * 100, False),
        ("忽略输入".encode("gbk") * 100, False),
        ("text".encode("utf-16"), False),
        (b"", False),
        (b"\0" * 4096, False),  # only the hole of a truncated log
        (b"\0" * 4096 + b"text after a hole\n", False),
        (b"\x1b[31mred\x1b[0m\r 1%\r 2%\n" * 10, False),
        (b"\x7fELF\x02\x01\x01", True),
        (b"\x80\x04\x95pickle", True),
        (b"PK\x03\x04", True),
        (bytes(range(256)) * 16, True),
        (b"a\0b\0c\0" * 100, True),
        (bytes(range(128, 256)) * 16, True),  # no control character, and no text in any encoding
        (b"\xf3\x1c\x9a\xd0" + b"\x8f\xe1Q#" * 10, True),  # one of 44 bytes is a control character
        ("忽略输入".encode("gbk")[:-1], False),
        (("épée à Noël " * 9).encode("latin-1") + b"\x01", False),
        ("Обучение\n".encode("koi8-r") * 9, False),
    ],
)
def test_binary_data_is_detected(head: bytes, binary: bool) -> None:
    assert looks_binary(head) is binary
