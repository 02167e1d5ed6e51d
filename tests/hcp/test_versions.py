import pytest

from hearth.hcp.versions import GRAMMAR, LONGEST_RANGE, how_to_accept, read_version, satisfies

WITHIN = [
    ("1.0.0", "1.x"),
    ("1.4.2", "1.x"),
    ("2.0.0", ">=2.0.0"),
    ("10.0.0", ">=2.0.0"),
    ("1.9.0", "^1.2"),
    ("1.2.9", "~1.2.3"),
    ("0.3.4", "^0.3.1"),
    ("3.0.0", "*"),
    ("3.0.0", "x"),
    ("3.1.0", "1.x || 3.x"),
    ("1.5.0", ">=1.0.0 <2.0.0"),
    ("2.3.0", "1 - 2"),
    ("1.0.0", "1.0.0"),
    ("1.0.0", "=1.0.0"),
    ("2.0.0-beta.1", "2.0.0-beta.1"),
    ("2.0.0-beta.2", ">=2.0.0-beta.1"),
]
OUTSIDE = [
    ("2.0.0", "1.x"),
    ("1.9.9", ">=2.0.0"),
    ("2.0.0", "^1.2"),
    ("1.1.9", "^1.2"),
    ("1.3.0", "~1.2.3"),
    ("0.4.0", "^0.3.1"),
    ("2.0.0", "1.x || 3.x"),
    ("2.0.0", ">=1.0.0 <2.0.0"),
    ("2.0.0-beta.1", "2.x"),
    ("2.0.0-beta.1", "*"),
]


@pytest.mark.parametrize(("version", "accepted"), WITHIN)
@pytest.mark.spec(
    "hcp L4 TaskSubmit Fields",
    "is",
    'capability_version | string | No | Semver range for acceptable capability versions (e.g., "1.x", ">=2.0.0")',
)
def test_a_range_takes_the_versions_that_npm_would_take(version, accepted):
    assert satisfies(version, accepted)


@pytest.mark.parametrize(("version", "accepted"), OUTSIDE)
def test_a_range_leaves_out_the_versions_that_npm_would_leave_out(version, accepted):
    assert not satisfies(version, accepted)


@pytest.mark.parametrize(
    "accepted", ["latest", ">=1.0,<2", "1,2", ">=", "1.2.3.4", "- 1.4.2", "01.2", "≥1", "1.x |", "a.b.c", "\x00"]
)
def test_what_is_no_range_is_refused_with_itself_in_the_reason(accepted):
    with pytest.raises(ValueError, match="is not a range of semver versions") as caught:
        satisfies("1.0.0", accepted)
    assert repr(accepted) in str(caught.value)


def test_a_range_longer_than_anybody_means_is_not_even_read():
    with pytest.raises(ValueError, match=f"at most {LONGEST_RANGE}"):
        satisfies("1.0.0", " || ".join(["1.x"] * 50))
    with pytest.raises(ValueError, match="5000 characters"):
        satisfies("1.0.0", "9" * 5000)


@pytest.mark.parametrize("accepted", ["1.x", "^1.2", "~1.2.3", ">=1.0.0 <2.0.0", "1.x || 3.x"])
def test_every_example_of_the_cure_is_a_range(accepted):
    assert f'"{accepted}"' in GRAMMAR
    satisfies("1.0.0", accepted)


@pytest.mark.parametrize("version", ["1.4.2", "0.3.1", "0.0.7", "2.0.0-beta.1", "10.20.30"])
def test_what_is_proposed_for_a_version_accepts_it(version):
    said = how_to_accept(version)
    proposed = said.split('"')[1]
    assert version in said
    assert satisfies(version, proposed)


def test_a_version_is_semver_whole():
    assert read_version("1.2.3-rc.1+build.5") == "1.2.3-rc.1+build.5"
    for text in ("1.2", "v1.2.3", "", "1.2.3.4", "01.2.3"):
        with pytest.raises(ValueError, match="expected a semver version"):
            read_version(text)


VERSIONS = "0.0.0 0.0.3 0.1.2 1.0.0 1.4.0 1.4.2 1.4.2+x 1.4.3 1.5.0 2.0.0 3.0.0 1.4.2-beta.1 1.4.2-beta.2 2.0.0-rc.1"


@pytest.mark.parametrize(
    ("accepted", "within"),
    [
        ("", "0.0.0 0.0.3 0.1.2 1.0.0 1.4.0 1.4.2 1.4.2+x 1.4.3 1.5.0 2.0.0 3.0.0"),
        (">= 1.0.0", "1.0.0 1.4.0 1.4.2 1.4.2+x 1.4.3 1.5.0 2.0.0 3.0.0"),
        (">=  1.4.2   < 2", "1.4.2 1.4.2+x 1.4.3 1.5.0"),
        ("^ 1.4", "1.4.0 1.4.2 1.4.2+x 1.4.3 1.5.0"),
        ("~>1.4", "1.4.0 1.4.2 1.4.2+x 1.4.3"),
        ("~> 1.4.2", "1.4.2 1.4.2+x 1.4.3"),
        ("=v1.4.2", "1.4.2 1.4.2+x"),
        ("1.4.2+build", "1.4.2 1.4.2+x"),
        ("^1.4.2+build.5 || v3", "1.4.2 1.4.2+x 1.4.3 1.5.0 3.0.0"),
        ("v1.0.0 - v1.4", "1.0.0 1.4.0 1.4.2 1.4.2+x 1.4.3"),
        ("^0.0.3 || ^0.1", "0.0.3 0.1.2"),
        (">1.4 <=2", "1.5.0 2.0.0"),
        ("<2.0.0 >1", ""),
        ("<2.0.0 >1.4.2", "1.4.3 1.5.0"),
        ("<1.4.2-beta.2 >=1.4.2-beta.1", "1.4.2-beta.1"),
        (">1.4.2-beta.1", "1.4.2 1.4.2+x 1.4.3 1.5.0 2.0.0 3.0.0 1.4.2-beta.2"),
        ("1.4.2-beta.1", "1.4.2-beta.1"),
        (">*", ""),
    ],
)
def test_a_range_means_what_it_means_to_npm(accepted, within):
    """Each row is what npm's `semver` 7 answers (`satisfies(version, range)`); its README, Ranges, has the grammar."""
    assert [version for version in VERSIONS.split() if satisfies(version, accepted)] == within.split()
