def sum_10(first, second):
    total = first + second
    total += first
    return total


def last_10(values, start):
    result = start
    for value in values:
        result = value
    return result
