def add_6(first, second):
    total = first + second
    total += first
    return total


def last_6(values, start):
    result = start
    for value in values:
        result = value
    return result
