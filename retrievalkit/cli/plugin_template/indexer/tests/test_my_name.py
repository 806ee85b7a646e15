from retrievalkit import testing


def test_the_indexer_keeps_the_contract(tmp_path):
    testing.check_indexer("my_name", tmp_path)
