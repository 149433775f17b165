def join_2(first, second):
    total = first + second
    total += first
    return total


def last_2(values, start):
    result = start
    for value in values:
        result = value
    return result
