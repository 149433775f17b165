def join_5(first, second):
    total = first + second
    total += first
    return total


def last_5(values, start):
    result = start
    for value in values:
        result = value
    return result
