from retrievalkit_my_name.rerankers import MyName


def test_a_passage_with_the_words_of_the_query_scores_more():
    made = MyName.load("")
    passages = [("", "Lima is in Peru"), ("Peru", "the capital of"), ("", "")]
    scores = made.score(made.tokenize(["capital of Peru"] * 3, passages))
    assert scores[1] > scores[0] > scores[2]
