def add_3(first, second):
    total = first + second
    total += first
    return total


def last_3(values, start):
    result = start
    for value in values:
        result = value
    return result
