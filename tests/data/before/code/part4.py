def sum_4(first, second):
    total = first + second
    total += first
    return total


def last_4(values, start):
    result = start
    for value in values:
        result = value
    return result
