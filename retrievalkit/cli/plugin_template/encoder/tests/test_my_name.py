from retrievalkit import testing


def test_the_encoder_keeps_the_contract(tmp_path):
    testing.check_encoder("my_name", model=testing.tiny_model(tmp_path / "model"))
