def add_9(first, second):
    total = first + second
    total += first
    return total


def last_9(values, start):
    result = start
    for value in values:
        result = value
    return result
