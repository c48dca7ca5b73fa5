#!/usr/bin/env python3
"""torch_schedules.py FOLDER: writes schedules of torch.distributed.pipelining as CSV, the data of text_test.cc.

They are in tests/parallel/schedule/data, made with PyTorch 2.15. Names are TYPE_RANKS_CHUNKS_MICROBATCHES.csv; those with
"_messages" have the sends and receives that PyTorch adds. A schedule is made without stages, which its constructor wants, from
its order of one rank.
"""
import csv
import pathlib
import sys

from torch.distributed.pipelining import schedules


def single(kind, ranks, microbatches):
    schedule = object.__new__(kind)
    schedule._num_stages, schedule._n_microbatches = ranks, microbatches
    return schedule._get_pipeline_order()


def multi(kind, ranks, chunks, microbatches):
    order = {}
    for rank in range(ranks):
        schedule = object.__new__(kind)
        schedule.pp_group_size, schedule.rank, schedule._n_microbatches = ranks, rank, microbatches
        schedule.n_local_stages, schedule._stages = chunks, [None] * chunks
        schedule.num_stages = schedule._num_stages = ranks * chunks
        schedule.number_of_rounds = max(1, microbatches // ranks)
        schedule.microbatches_per_round = microbatches // schedule.number_of_rounds
        order[rank] = schedule._calculate_single_rank_operations(rank)
    return order


def with_messages(order, stages, placement):
    computations = {rank: [action for action in actions if action is not None] for rank, actions in order.items()}
    return schedules._add_send_recv(computations, placement.__getitem__, stages)


def main(folder):
    looped = {"interleaved": schedules.ScheduleInterleaved1F1B, "looped-bfs": schedules.ScheduleLoopedBFS,
              "interleaved-zb": schedules.ScheduleInterleavedZeroBubble}
    v_shaped = {"zb-v": schedules.ScheduleZBVZeroBubble, "dualpipe-v": schedules.ScheduleDualPipeV}
    orders = {"gpipe_4_1_8": single(schedules.ScheduleGPipe, 4, 8), "1f1b_4_1_8": single(schedules.Schedule1F1B, 4, 8)}
    for name, kind in {**looped, **v_shaped}.items():
        orders[f"{name}_4_2_8"] = multi(kind, 4, 2, 8)
    orders["interleaved_4_3_4"] = multi(looped["interleaved"], 4, 3, 4)
    orders["zb-v_4_2_3"] = multi(v_shaped["zb-v"], 4, 2, 3)
    for name in looped:
        orders[f"{name}_4_2_8_messages"] = with_messages(orders[f"{name}_4_2_8"], 8, [stage % 4 for stage in range(8)])
    for name in v_shaped:
        orders[f"{name}_4_2_8_messages"] = with_messages(orders[f"{name}_4_2_8"], 8, [0, 1, 2, 3, 3, 2, 1, 0])
    for name, order in orders.items():
        with open(pathlib.Path(folder) / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows(order[rank] for rank in sorted(order))


if __name__ == "__main__":
    main(sys.argv[1])
