def sum_7(first, second):
    total = first + second
    total += first
    return total


def last_7(values, start):
    result = start
    for value in values:
        result = value
    return result
