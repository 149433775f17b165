"""The compiled loops of this room: parsing `src dst time weight` lines and numbering their ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.runtime import compiled

SRC, DST, TIME, WEIGHT = 0, 1, 2, 3
"""Roles of a line's tokens."""

OK, TOO_FEW, TOO_MANY, EMPTY_FIELD = 0, 1, 2, 3
BAD_ID, HUGE_ID, BAD_NUMBER, HUGE_NUMBER, NEGATIVE_TIME = 4, 5, 6, 7, 8
"""What may be wrong with a line."""

_NEWLINE, _COMMA, _HASH, _PERCENT = 10, 44, 35, 37
_PLUS, _MINUS, _POINT, _ZERO, _LOWER_E = 43, 45, 46, 48, 101
_TENTH_OF_LARGEST_ID = (2**63 - 1) // 10
# A mantissa up to 2^53 and a power up to 10^22 are exact in float64, so one product or quotient
# of them is rounded once, that is: correctly.
_EXACT_MANTISSA = 2**53
_EXACT_POWER = 22
_POWERS = 10.0 ** np.arange(_EXACT_POWER + 1)


@compiled()
def _is_blank(byte: int) -> bool:
    return byte == 32 or (9 <= byte <= 13 and byte != _NEWLINE)


@compiled()
def _skip_blanks(block: Any, at: int) -> int:
    while at < block.shape[0] and _is_blank(block[at]):
        at += 1
    return at


@compiled()
def _token_stop(block: Any, at: int) -> int:
    while at < block.shape[0]:
        byte = block[at]
        if byte in (_NEWLINE, _COMMA) or _is_blank(byte):
            break
        at += 1
    return at


@compiled()
def _is_line_end(block: Any, at: int) -> bool:
    return bool(at >= block.shape[0] or block[at] == _NEWLINE)


@compiled()
def _parse_integer(block: Any, start: int, stop: int) -> Any:
    """(status, value) of the token block[start:stop]."""
    at = start
    negative = block[at] == _MINUS
    if negative or block[at] == _PLUS:
        at += 1
    if at == stop:
        return BAD_ID, 0
    value = 0
    while at < stop:
        digit = np.int64(block[at]) - _ZERO
        if digit < 0 or digit > 9:
            return BAD_ID, 0
        if value >= _TENTH_OF_LARGEST_ID and (value > _TENTH_OF_LARGEST_ID or digit > 7):
            return HUGE_ID, 0
        value = value * 10 + digit
        at += 1
    return OK, -value if negative else value


@compiled()
def _parse_number(block: Any, start: int, stop: int) -> Any:
    """(status, value, exact) of the decimal number block[start:stop]; not exact: parse it again."""
    at = start
    negative = block[at] == _MINUS
    if negative or block[at] == _PLUS:
        at += 1
    mantissa = 0
    significant = 0
    digits = 0
    decimals = 0
    point = False
    while at < stop:
        byte = np.int64(block[at])
        if byte == _POINT and not point:
            point = True
        elif 0 <= byte - _ZERO <= 9:
            digits += 1
            if point:
                decimals += 1
            if significant > 0 or byte != _ZERO:
                significant += 1
            if significant <= 18:
                mantissa = mantissa * 10 + (byte - _ZERO)
        else:
            break
        at += 1
    if digits == 0:
        return BAD_NUMBER, 0.0, True
    exponent = 0
    if at < stop:
        # Setting bit 5 makes an ASCII letter lower case.
        if block[at] | 32 != _LOWER_E:
            return BAD_NUMBER, 0.0, True
        at += 1
        minus = at < stop and block[at] == _MINUS
        if at < stop and (minus or block[at] == _PLUS):
            at += 1
        if at == stop:
            return BAD_NUMBER, 0.0, True
        while at < stop:
            digit = np.int64(block[at]) - _ZERO
            if digit < 0 or digit > 9:
                return BAD_NUMBER, 0.0, True
            exponent = min(exponent * 10 + digit, 100_000)
            at += 1
        if minus:
            exponent = -exponent
    if mantissa == 0:
        return OK, 0.0, True
    power = exponent - decimals
    if significant + power > 308:
        return HUGE_NUMBER, 0.0, True
    exact = significant <= 18 and mantissa <= _EXACT_MANTISSA and abs(power) <= _EXACT_POWER
    value = 0.0
    if exact:
        value = mantissa * _POWERS[power] if power >= 0 else mantissa / _POWERS[-power]
    return OK, -value if negative else value, exact


@compiled()
def parse_lines(
    block: Any, roles: Any, text: bool, skip: bool, src: Any, dst: Any, time: Any, weight: Any
) -> Any:
    """Parse whole lines until `src` is full or a line is malformed.

    Tokens are separated by blanks or by one comma with blanks around it; blank lines and lines
    that begin with # or % are passed over.

    Args:
        block: uint8 [bytes].
        roles: int [tokens], what each token of a line is: SRC, DST, TIME or WEIGHT.
        text: ids are names: `src` and `dst` get where the token is, start * 2^32 + stop.
        skip: pass over malformed lines and count them, instead of stopping.
        src: int64 [rows], written.
        dst: int64 [rows], written.
        time: float64 [rows], written; empty when no token is TIME.
        weight: float64 [rows], written; empty when no token is WEIGHT.

    Returns:
        (rows written; lines seen; lines skipped; status; start of the last line; hard). `hard`
        int64 [h, 4] lists numbers of too many digits for this loop: row, role, start, stop.
    """
    size = block.shape[0]
    hard = np.empty((16, 4), dtype=np.int64)
    num_hard = 0
    row = 0
    lines = 0
    skipped = 0
    at = 0
    line_start = 0
    while at < size and row < src.shape[0]:
        lines += 1
        line_start = at
        at = _skip_blanks(block, at)
        status = OK
        if not _is_line_end(block, at) and block[at] != _HASH and block[at] != _PERCENT:
            hard_before = num_hard
            for i in range(roles.shape[0]):
                if i > 0:
                    at = _skip_blanks(block, at)
                    comma = at < size and block[at] == _COMMA
                    if comma:
                        at = _skip_blanks(block, at + 1)
                    if _is_line_end(block, at):
                        status = EMPTY_FIELD if comma else TOO_FEW
                        break
                start = at
                at = _token_stop(block, at)
                if at == start:
                    status = EMPTY_FIELD
                    break
                role = roles[i]
                if role in (SRC, DST):
                    if text:
                        number = (start << 32) | at
                    else:
                        status, number = _parse_integer(block, start, at)
                    if role == SRC:
                        src[row] = number
                    else:
                        dst[row] = number
                else:
                    status, value, exact = _parse_number(block, start, at)
                    if status == OK and not exact:
                        if num_hard == hard.shape[0]:
                            longer = np.empty((2 * num_hard, 4), dtype=np.int64)
                            longer[:num_hard] = hard
                            hard = longer
                        hard[num_hard, 0] = row
                        hard[num_hard, 1] = role
                        hard[num_hard, 2] = start
                        hard[num_hard, 3] = at
                        num_hard += 1
                    if role == TIME:
                        time[row] = value
                        if status == OK and block[start] == _MINUS and (value < 0 or not exact):
                            status = NEGATIVE_TIME
                    else:
                        weight[row] = value
                if status != OK:
                    break
            if status == OK and not _is_line_end(block, _skip_blanks(block, at)):
                status = TOO_MANY
            if status == OK:
                row += 1
            elif skip:
                skipped += 1
                num_hard = hard_before
            else:
                return row, lines, skipped, status, line_start, hard[:num_hard]
        while at < size and block[at] != _NEWLINE:
            at += 1
        at += 1
    return row, lines, skipped, OK, line_start, hard[:num_hard]


@compiled()
def _slot(key: int, mask: int) -> int:
    # Fibonacci hashing; the upper half of the product depends on every bit of the key.
    product = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return int(product >> np.uint64(32)) & mask


@compiled()
def hash_ids(ids: Any, num_slots: int) -> Any:
    """Hash table of distinct `ids` int64 [n]: int64 [num_slots], each a place in `ids` or -1.

    `num_slots` is a power of two of at least 2 n, at most 2^32.
    """
    slots = np.full(num_slots, -1, dtype=np.int64)
    for i in range(ids.shape[0]):
        slot = _slot(ids[i], num_slots - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (num_slots - 1)
        slots[slot] = i
    return slots


@compiled()
def find_ids(ids: Any, slots: Any, wanted: Any) -> Any:
    """Places in `ids` of `wanted` int64 [k], every one of which is there: int64 [k]."""
    places = np.empty(wanted.shape[0], dtype=np.int64)
    mask = slots.shape[0] - 1
    for i in range(wanted.shape[0]):
        slot = _slot(wanted[i], mask)
        while ids[slots[slot]] != wanted[i]:
            slot = (slot + 1) & mask
        places[i] = slots[slot]
    return places
