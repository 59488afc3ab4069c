#include "fsdp/batch_transfer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "support/fake_cuda/fake_cuda.h"
#include "support/torch_ranks.h"
#include "torch_cuda/error_texts.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Calls = std::vector<std::string>;

struct Rows {
  at::Tensor ids, labels;
  int64_t index = 0;
};

Rows rows_of(int64_t index) {
  return {torch::full({2, 3}, index), torch::full({2}, 10 + index), index};
}

}  // namespace

TEST_CASE("batches come in order, on the device, with what they hold beside tensors") {
  BatchTransfer<Rows> batches(kGpu, 4, rows_of);
  for (int64_t i = 0; i < 4; ++i) {
    const Rows rows = batches.next();
    CHECK(rows.index == i);
    CHECK(rows.ids.device() == kGpu);
    CHECK(bit_equal(rows.ids.cpu(), torch::full({2, 3}, i)));
    CHECK(bit_equal(rows.labels.cpu(), torch::full({2}, 10 + i)));
  }
  CHECK_THROWS_WITH_AS(batches.next(),
                       "next() was called after the last batch (batch transfer); hint: call next() "
                       "only as often as there are batches",
                       StateError);
}

TEST_CASE("a copy runs on a stream of its own behind compute's work, and compute waits for it") {
  fake_cuda::reset();
  {
    BatchTransfer<at::Tensor> batches(kGpu, 3, [](int64_t i) { return torch::full({2}, i); });
    CHECK(fake_cuda::take_calls() == Calls{"stream 1 from the pool"});
    const auto copy = [](int given, int copied) {
      const std::string event = std::to_string(given);
      return Calls{"record event " + event + " on stream 0",
                   "stream 1 waits for event " + event,
                   "stream 1 is current",
                   "copy from pinned memory to the device on stream 1",
                   "stream 0 is current",
                   "record event " + std::to_string(copied) + " on stream 1",
                   "destroy event " + event};
    };
    const auto taken = [](int copied) {
      const std::string event = std::to_string(copied);
      return Calls{"stream 0 waits for event " + event, "destroy event " + event};
    };
    const auto join = [](std::initializer_list<Calls> parts) {
      Calls all;
      for (const Calls& part : parts) all.insert(all.end(), part.begin(), part.end());
      return all;
    };
    batches.next();  // also starts the copy of the next batch
    CHECK(fake_cuda::take_calls() == join({copy(1, 2), copy(3, 4), taken(2)}));
    batches.next();
    CHECK(fake_cuda::take_calls() == join({copy(5, 6), taken(4)}));
  }
  // One batch was not used. Before its memory is reused, compute must wait for its copy too.
  CHECK(fake_cuda::take_calls() == Calls{"stream 0 waits for event 6", "destroy event 6"});
}

TEST_CASE("how many batches are ahead can be chosen; none is copied in its turn") {
  for (const int64_t ahead : {0, 1, 3}) {
    CAPTURE(ahead);
    int64_t made = 0;
    BatchTransfer<at::Tensor> batches(
        kGpu, 6, [&](int64_t i) { return ++made, torch::full({2}, i); }, ahead);
    CHECK(made == 0);
    for (int64_t i = 0; i < 6; ++i) {
      CHECK(batches.next()[0].item<int64_t>() == i);
      CHECK(made == std::min<int64_t>(i + 1 + ahead, 6));
    }
  }
}

TEST_CASE("a thread's stream that is not the default one is the one that waits") {
  fake_cuda::reset();
  const c10::StreamGuard compute(fake_cuda::stream(7));
  BatchTransfer<at::Tensor> batches(kGpu, 1, [](int64_t) { return torch::ones({2}); });
  fake_cuda::take_calls();
  batches.next();
  const Calls calls = fake_cuda::take_calls();
  CHECK(calls.front() == "record event 1 on stream 7");
  CHECK(calls[calls.size() - 2] == "stream 7 waits for event 2");
}

TEST_CASE("views arrive as they are; what is pinned, undefined or on the device stays") {
  const at::Tensor pinned = values({4, 6}, 1).pin_memory();
  const at::Tensor permuted = values({4, 6}, 2).t(), sliced = values({4, 6}, 3).slice(1, 1, 4);
  const at::Tensor there_already = pinned.to(kGpu);
  fake_cuda::reset();
  BatchTransfer<std::vector<at::Tensor>> batches(kGpu, 1, [&](int64_t) {
    return std::vector<at::Tensor>{pinned, permuted, sliced, at::Tensor(), there_already};
  });
  const std::vector<at::Tensor> there = batches.next();
  const Calls calls = fake_cuda::take_calls();
  CHECK(std::count(calls.begin(), calls.end(),
                   "copy from pinned memory to the device on stream 1") == 3);
  CHECK(bit_equal(there[0].cpu(), pinned));
  CHECK(bit_equal(there[1].cpu(), permuted));
  CHECK(there[1].strides() == permuted.strides());
  CHECK(bit_equal(there[2].cpu(), sliced));
  CHECK(!there[3].defined());
  CHECK(there[4].is_same(there_already));
}

TEST_CASE("on the CPU batches are made in their turn and handed out as they are") {
  std::vector<at::Tensor> made;
  BatchTransfer<at::Tensor> batches(kCpu, 2, [&](int64_t i) {
    made.push_back(torch::full({2}, i));
    return made.back();
  });
  fake_cuda::reset();
  for (size_t i = 0; i < 2; ++i) {
    const at::Tensor batch = batches.next();
    CHECK(made.size() == i + 1);
    CHECK(batch.is_same(made[i]));
  }
  CHECK(fake_cuda::take_calls() == Calls{});
}

TEST_CASE("what making a batch throws is thrown in its turn, and from then on") {
  BatchTransfer<at::Tensor> batches(kGpu, 3, [](int64_t i) {
    if (i == 1) throw std::runtime_error("no such row");
    return torch::full({2}, i);
  });
  CHECK(batches.next()[0].item<int64_t>() == 0);
  CHECK_THROWS_WITH(batches.next(), "no such row");
  CHECK_THROWS_WITH(batches.next(), "no such row");
}

TEST_CASE("a tensor of a third device and one that requires a gradient are refused") {
  for (const at::Device device : {kGpu, kCpu}) {
    const std::string name = device.str();
    BatchTransfer<at::Tensor> meta(device, 1, [](int64_t) { return torch::ones({2}, at::kMeta); });
    CHECK_THROWS_WITH_AS(meta.next(),
                         ("a tensor of a batch is on meta, expected the CPU or " + name +
                          "; hint: make batches on the CPU")
                             .c_str(),
                         InvalidArgument);
    BatchTransfer<at::Tensor> trained(
        device, 1, [](int64_t) { return torch::ones({2}, torch::requires_grad()); });
    CHECK_THROWS_WITH_AS(
        trained.next(),
        doctest::Contains("call requires_grad_() on the tensors that next() returns"),
        InvalidArgument);
  }
}

TEST_CASE("batches cannot go to a GPU that LibTorch has done without") {
  const fake_cuda::Absent absent;
  CHECK_THROWS_WITH_AS(BatchTransfer<at::Tensor>(kGpu, 1, [](int64_t) { return at::Tensor(); }),
                       doctest::Contains(kNoCuda), StateError);
}
