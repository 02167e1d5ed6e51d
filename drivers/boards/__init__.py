"""Boards: profiles of what a machine has, and the drivers that go with them."""

from hearth.drivers.board import BOARD_BUS as BOARD_BUS, Board as Board, BoardDriver as BoardDriver
from hearth.drivers.boards.board import open_board as open_board
from hearth.drivers.boards.profile import (
    load_profile as load_profile,
    profile_file as profile_file,
    shipped_profiles as shipped_profiles,
)
from hearth.drivers.profile import Profile as Profile, Undriven as Undriven
from hearth.drivers.sensor import Sensor as Sensor
