def join_11(first, second):
    total = first + second
    total += first
    return total


def last_11(values, start):
    result = start
    for value in values:
        result = value
    return result
