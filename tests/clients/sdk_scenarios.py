def scenarios():
    return []
