// Tests buffers on several ranks. They are equal after construction, and averaged on request.
#include "engine/buffers.h"

#include "engine/support/error_texts.h"
#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace nn = torch::nn;

namespace {

// A linear layer with the buffers that the test passes.
struct BufferedImpl : nn::Module {
  explicit BufferedImpl(const std::vector<at::Tensor>& buffers)
      : linear(register_module("linear", nn::Linear(4, 4))) {
    for (size_t i = 0; i < buffers.size(); ++i) {
      register_buffer("buffer" + std::to_string(i), buffers[i]);
    }
  }
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  nn::Linear linear;
};
TORCH_MODULE(Buffered);

at::Tensor of_rank(int rank) { return torch::full({3, 4}, 1.0F + static_cast<float>(rank)); }

}  // namespace

TEST_CASE("expanded, strided, empty and shared buffers get rank 0's values on every rank") {
  for (const int world : {1, 2, 3}) {
    run_torch_ranks(world, [](Mesh mesh) {
      const int rank = mesh.rank();
      const at::Tensor shared = of_rank(rank);
      Unit<Buffered> model(std::vector<at::Tensor>{
          torch::full({4, 1}, 1.0F + static_cast<float>(rank)).expand({4, 5}),
          torch::scalar_tensor(7 + rank, torch::kLong).expand({2, 3}), of_rank(rank).t(),
          torch::zeros({4, 6}).slice(1, 0, 6, 2).add_(rank), torch::ones({0, 3}), shared, shared,
          torch::full({2}, rank == 0, torch::kBool)});
      const Engine engine(model, mesh);
      const auto buffers = model->named_buffers();
      CHECK(buffers["buffer0"].equal(torch::ones({4, 5})));
      CHECK(buffers["buffer0"].stride(1) == 0);
      CHECK(buffers["buffer1"].equal(torch::full({2, 3}, 7, torch::kLong)));
      CHECK(buffers["buffer2"].equal(torch::ones({4, 3})));
      CHECK(buffers["buffer3"].equal(torch::zeros({4, 3})));
      CHECK(buffers["buffer5"].equal(torch::ones({3, 4})));
      CHECK(buffers["buffer7"].all().item<bool>());
    });
  }
}

TEST_CASE("sparse and quantised buffers that are equal on all ranks are accepted") {
  for (const int world : {1, 2}) {
    run_torch_ranks(world, [](Mesh mesh) {
      Unit<Buffered> model(std::vector<at::Tensor>{
          torch::eye(3).to_sparse(), torch::eye(3).to_sparse_csr(), torch::eye(4).to_sparse_csc(),
          at::quantize_per_tensor(torch::eye(3), 0.5, 0, torch::kQInt8)});
      Engine engine(model, mesh);
      CHECK(model(torch::ones({2, 4})).sum().isfinite().item<bool>());
      engine.average_buffers();
    });
  }
}

TEST_CASE("buffers that cannot be made equal and differ are refused by name on all ranks") {
  const auto errors = [](const std::function<at::Tensor(int rank)>& buffer) {
    return errors_of_ranks(
        2,
        [&](Mesh mesh) {
          Unit<Buffered> model(std::vector<at::Tensor>{buffer(mesh.rank())});
          const Engine engine(model, mesh);
        },
        torch_ranks_options());
  };
  const auto all_have = [](const std::vector<std::string>& texts, std::string_view part) {
    for (const std::string& text : texts) {
      CAPTURE(text);
      CHECK(text.find(part) != std::string::npos);
    }
  };
  all_have(errors([](int rank) { return (torch::eye(3) * (1.0 + rank)).to_sparse(); }),
           "buffer 'buffer0' [3, 3] Float Sparse with content ");
  all_have(errors([](int rank) { return torch::ones({3 + rank}); }), "buffer 'buffer0' [4] Float");
  all_have(errors([](int) { return torch::ones({3}, at::kMeta); }), "buffer 'buffer0' is on meta");
}

TEST_CASE("average_buffers makes floating buffers the mean over the ranks, others rank 0's") {
  for (const int world : {1, 2, 3}) {
    run_torch_ranks(world, [world](Mesh mesh) {
      Unit<Buffered> model(std::vector<at::Tensor>{
          torch::zeros({3, 4}), torch::zeros({2}, torch::kLong),
          torch::zeros({4, 1}).expand({4, 2}), torch::zeros({3}, torch::kBFloat16),
          torch::zeros({2, 3}).t(), torch::zeros({2}, torch::kDouble)});
      Engine engine(model, mesh);
      const auto buffers = model->named_buffers();
      const int rank = mesh.rank();
      buffers["buffer0"].fill_(3 * rank);
      buffers["buffer1"].fill_(5 + rank);
      buffers["buffer2"].select(1, 0).fill_(3 * rank);
      buffers["buffer3"].fill_(3 * rank);
      buffers["buffer4"].select(0, 1).fill_(3 * rank);
      buffers["buffer5"].fill_(0.75 * rank);
      engine.average_buffers();
      const double mean = 3.0 * (world - 1) / 2;
      CHECK(buffers["buffer0"].equal(torch::full({3, 4}, mean, torch::kFloat)));
      CHECK(buffers["buffer1"].equal(torch::full({2}, 5, torch::kLong)));
      CHECK(buffers["buffer2"].equal(torch::full({4, 2}, mean, torch::kFloat)));
      CHECK(buffers["buffer3"].equal(torch::full({3}, mean, torch::kBFloat16)));
      CHECK(buffers["buffer4"][0].equal(torch::zeros({2})));
      CHECK(buffers["buffer4"][1].equal(torch::full({2}, mean, torch::kFloat)));
      CHECK(buffers["buffer5"].equal(torch::full({2}, mean / 4, torch::kDouble)));
    });
  }
}

TEST_CASE("average_buffers inside a forward is refused") {
  run_torch_ranks(2, [](Mesh mesh) {
    Engine* current = nullptr;
    auto model = build_seeded(7, [&] {
      return Unit<Graph>(1, 4, [&](GraphImpl& graph, const at::Tensor& x) {
        current->average_buffers();
        return graph.units[0](x);
      });
    });
    Engine engine(model, mesh);
    current = &engine;
    CHECK_THROWS_WITH_AS(
        model(values({2, 4}, 1)),
        doctest::Contains(("average_buffers is not allowed" + kInsidePass).c_str()), StateError);
  });
}
