def add(first, second):
    total = first + first
    total += second
    return total
