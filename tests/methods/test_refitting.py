"""Methods that fit to validation rows what training could only follow."""

import pytest
import torch

from tests.methods.problem import fit, make_problem, prepare


def memorised(**options):
    """Sixty people and many epochs: a network that knows them by heart; and people whom it has never seen."""
    people = make_problem(60)
    held_out, new = make_problem(3000, seed=5, like=people), make_problem(4000, seed=6, like=people)
    model = prepare("pmdn", people, **options)
    fit(model, people, epochs=200, lr=1e-2, size=30)
    return model.eval(), held_out, new


def effect_of_age(model, people):
    """The slope of the logit on age beside the other columns, in standard deviations of the logit."""
    with torch.no_grad():
        logit = model(people.x, people.metadata)[:, 0].double()
    columns = torch.cat([people.metadata.double(), torch.ones(len(people), 1).double()], dim=1)
    return abs(float(torch.linalg.lstsq(columns, logit).solution[0] / logit.std()))


def test_a_refitted_method_shows_new_people_less_of_the_confounds_than_a_memorising_one():
    model, held_out, new = memorised()
    before = effect_of_age(model, new)
    assert before > 0.08  # the training rows' own β does not serve new people: the control
    with model.refitted(held_out.batches):
        inside = effect_of_age(model, new)
    assert inside < 0.5 * before
    assert effect_of_age(model, new) == pytest.approx(before)
    model.refit(held_out.batches)
    assert effect_of_age(model, new) == pytest.approx(inside)


@pytest.mark.parametrize("name", ["none", "mdn", "rmdn", "pmdn-alternating", "adversarial"])
def test_published_methods_do_not_refit(name):
    people = make_problem(60)
    model = prepare(name, people).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with model.refitted(people.batches):
        pass
    model.refit(people.batches)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_with_controls_only_a_method_refits_on_controls_only():
    people, held_out = make_problem(60), make_problem(400, seed=5)
    model = prepare("pmdn", people, controls_only=True)
    model.refit(held_out.batches)
    found = model.model.layers["0"].beta.clone()
    again = prepare("pmdn", people, controls_only=True)
    rows = held_out.target[:, 0] == 0
    again.model.refit(
        [(held_out.x[rows][part], held_out.metadata[rows][part]) for part in torch.arange(rows.sum()).split(50)]
    )
    torch.testing.assert_close(found, again.model.layers["0"].beta, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, prepare("pmdn", people).model.layers["0"].beta)
