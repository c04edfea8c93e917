"""Three masks with three names, because one that serves as another is a bug that no curve shows.

    role        who wrote a token: prompt, model or tool     a column of the record, not decided here
    attention   what the model may look at                   `attended_mask`
    loss        what is trained                              `loss_mask`

b = row (one sequence of a rollout), t = token.
"""  # noqa: E501 (a table)

import torch
from torch import Tensor

from uptrend.records import Role


def attended_mask(real_bt: Tensor) -> Tensor:
    """Return the tokens that the model may look at: every real one of any role, trained or not."""
    # The one place where attention is decided. It takes neither roles nor a loss mask, so that
    # neither can hide a token from the model. verifiers 0.1.2 to 0.1.6 used the loss mask here: the
    # learner saw neither the question nor the documents that its answers were about, and learned to
    # answer without them.
    return real_bt.bool()


def loss_mask(roles_bt: Tensor, real_bt: Tensor, left_out_b: Tensor) -> Tensor:
    """Return the tokens that are trained: real ones that the model wrote, in rows that are not left
    out.
    """
    # Left out are rollouts cut by length (`mask_truncated`, DAPO's overlong filtering), rollouts
    # that failed, and dropped groups: they stay in the batch, so that their part of an update can
    # be inspected.
    return (roles_bt == Role.MODEL) & real_bt.bool() & ~left_out_b.bool()[:, None]


def within(values_bt: Tensor, mask_bt: Tensor) -> Tensor:
    """Return the values with 0 outside the mask, so that no value there reaches a sum or a
    gradient.
    """
    return values_bt.masked_fill(~mask_bt, 0)


# A chat template that rewrites history splits one rollout into several sequences. It is still one
# attempt with one reward, so where a formula says "sequence" (a length, a sequence's probability)
# it means all rows of a rollout.


def number_rollouts(rollouts_b: Tensor, like_bt: Tensor) -> tuple[Tensor, int]:
    """Number the rollouts of rows from 0 on, by token, and count them."""
    numbers, index_b = torch.unique(rollouts_b, return_inverse=True)
    return index_b[:, None].expand_as(like_bt), numbers.numel()


def rollout_sum(values_bt: Tensor, rollouts_bt: Tensor, count: int) -> Tensor:
    """Return the sum over all tokens of a rollout, at each of them."""
    index = rollouts_bt.flatten()
    sums = values_bt.new_zeros(count).index_add(0, index, values_bt.flatten())
    return sums[index].view_as(values_bt)
