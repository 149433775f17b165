def add_0(first, second):
    total = first + second
    total += first
    return total


def last_0(values, start):
    result = start
    for value in values:
        result = value
    return result
