"""Golden rows written by hand from the specifications: values, codes and bytes that no code of ours made.

A table of data, read in both directions by test_codes, test_grid and test_packing. A row of fp8 or int8 holds its
absmax as first value, chosen so that the scale is a power of two and the arithmetic can be done on paper.
"""

# name, values, scale, E4M3FN codes: scale = absmax / 448
FP8_ROWS = [
    ("ends", [448.0, -448.0, 0.0, 1.0], 1.0, "7e fe 00 38"),
    ("one_binade", [448.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0], 1.0, "7e 50 51 52 53 54 55 56 57"),
    ("ties_to_even", [448.0, 8.5, 9.5, 10.5, 272.0, 304.0], 1.0, "7e 50 52 52 78 7a"),
    ("subnormal", [448.0, 2.0**-9, 3 * 2.0**-9, 7 * 2.0**-9, 2.0**-6], 1.0, "7e 01 03 07 08"),
    ("below_subnormal", [448.0, 2.0**-10, 1.5 * 2.0**-10, -(2.0**-11)], 1.0, "7e 00 01 80"),
    ("negative_zero", [448.0, -0.0, 0.0], 1.0, "7e 80 00"),
    ("half_scale", [224.0, 1.0, -28.0], 0.5, "7e 40 e6"),
    ("zero_row", [0.0, -0.0, 0.0], 1.0, "00 80 00"),
]

# name, values, scale, E4M3FNUZ codes: scale = absmax / 240, the same pattern means half of what FN means
FP8FNUZ_ROWS = [
    ("ends", [240.0, -240.0, 0.0, 1.0], 1.0, "7f ff 00 40"),
    ("one_binade", [240.0, 8.0, 9.0, 10.0, 15.0], 1.0, "7f 58 59 5a 5f"),
    ("ties_to_even", [240.0, 8.5, 9.5, 232.0], 1.0, "7f 58 5a 7e"),
    ("subnormal", [240.0, 2.0**-10, 7 * 2.0**-10, 2.0**-7], 1.0, "7f 01 07 08"),
    ("no_negative_zero", [240.0, -0.0, -(2.0**-12)], 1.0, "7f 00 00"),
    ("zero_row", [0.0, -0.0], 1.0, "00 00"),
]

# name, values, scale, int8 codes: scale = absmax / 127
INT8_ROWS = [
    ("ends", [127.0, -127.0, 0.0, 1.0, -1.0], 1.0, "7f 81 00 01 ff"),
    ("ties_to_even", [127.0, 0.5, 1.5, 2.5, -0.5, -1.5], 1.0, "7f 00 02 02 00 fe"),
    ("quarter_scale", [31.75, 0.25, -0.25, 8.0], 0.25, "7f 01 ff 20"),
    ("zero_row", [0.0, -0.0], 1.0, "00 00"),
]

# name, eight levels, the int32 word in hex: nibble = level + 8, the first level in the lowest four bits
WORDS = [
    ("zeros", [0, 0, 0, 0, 0, 0, 0, 0], "88888888"),
    ("ascending", [-8, -7, -6, -5, -4, -3, -2, -1], "76543210"),
    ("upper_half", [0, 1, 2, 3, 4, 5, 6, 7], "fedcba98"),
    ("first_is_lowest", [7, -8, -8, -8, -8, -8, -8, -8], "0000000f"),
    ("last_is_highest", [-8, -8, -8, -8, -8, -8, -8, 7], "f0000000"),
    ("low_bits_of_24", [1, 0, 0, 0, 0, 0, 0, 0], "88888889"),
]

# name, the first values of a group (the rest are zero), its step, its levels
GROUPS = [
    ("zeros", [0.0], 1.0, [0]),
    ("negative_zeros", [-0.0, -0.0], 1.0, [0, 0]),
    ("one_value", [0.5], 0.5, [1]),
    ("constant", [0.25] * 32, 0.25, [1] * 32),
    ("peak_1", [1.5, -1.5], 1.5, [1, -1]),
    ("peak_2", [2.0, 1.0, -1.0], 1.0, [2, 1, -1]),
    ("peak_3_without_1", [3.0, 2.0], 1.0, [3, 2]),
    ("peak_5", [-2.5, 0.5, 1.0], 0.5, [-5, 1, 2]),
    ("peak_7", [7.0, -7.0, 1.0], 1.0, [7, -7, 1]),
    ("peak_minus_8", [-8.0, 7.0, 1.0], 1.0, [-8, 7, 1]),
    ("positive_8_needs_a_negative_step", [8.0, -7.0, 1.0], -1.0, [-8, 7, -1]),
    ("coarsest_lattice", [8.0, 4.0, -4.0], 4.0, [2, 1, -1]),
    ("step_between_powers", [0.6875, 0.0982666015625], 0.09814453125, [7, 1]),
]

# name, first values of a group (the rest zero) that lies on no lattice of -8..7
OFF_GRID = [
    ("eight_on_both_sides", [8.0, -8.0, 1.0]),
    ("peak_9", [9.0, 1.0, 2.0]),
    ("peak_16", [16.0, 1.0]),
    ("between_levels", [7.0, 1.0, 2.5]),
    ("infinity", [float("inf"), 1.0]),
    ("minus_infinity", [-float("inf"), 1.0]),
    ("not_a_number", [float("nan"), 1.0]),
    ("minus_not_a_number", [-float("nan"), 1.0]),
]
