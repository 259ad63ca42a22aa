"""Levenshtein's edit distance of two sequences."""

from __future__ import annotations

from ..decorator import smooth


@smooth
def levenshtein(s, t):
    """The fewest insertions, deletions and replacements that turn `s` into `t`.

    Letters are numbers; two are equal to the extent that the exit says so, exactly on integers.

    >>> levenshtein.crisp("kitten", "sitting")
    3.0
    """
    row = [float(j) for j in range(len(t) + 1)]
    for i in range(len(s)):
        diagonal = row[0]
        row[0] = float(i + 1)
        for j in range(len(t)):
            replaced = diagonal if s[i] == t[j] else diagonal + 1.0
            diagonal = row[j + 1]
            row[j + 1] = min(replaced, row[j] + 1.0, row[j + 1] + 1.0)
    return row[len(t)]
