"""A task is known by what it asks."""

from uptrend.records import Message, Task, tasks_hash

ASK = (Message("user", "2 + 3 ="),)


def test_equal_questions_have_equal_ids_whatever_else_they_carry() -> None:
    assert Task(ASK, "5", "add").id == Task(ASK, "6", "other", 3.0, {"a": 1}).id
    assert Task(ASK, "5", "add").id != Task((Message("user", "2 + 4 ="),), "5", "add").id
    assert Task(ASK, "5", "add").id != Task((Message("system", "2 + 3 ="),), "5", "add").id


def test_a_list_of_tasks_is_known_by_questions_answers_and_order() -> None:
    one, two = Task(ASK, "5", "add"), Task((Message("user", "1 + 1 ="),), "2", "add")
    assert tasks_hash([one, two]) == tasks_hash([one, two])
    assert tasks_hash([one, two]) != tasks_hash([two, one])
    assert tasks_hash([one]) != tasks_hash([Task(ASK, "6", "add")])
