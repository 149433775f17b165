def sum_1(first, second):
    total = first + second
    total += first
    return total


def last_1(values, start):
    result = start
    for value in values:
        result = value
    return result
