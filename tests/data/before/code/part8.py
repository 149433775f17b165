def join_8(first, second):
    total = first + second
    total += first
    return total


def last_8(values, start):
    result = start
    for value in values:
        result = value
    return result
