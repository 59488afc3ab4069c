// Tests gradients that are sent from the memory that LibTorch allocated for them: [Note: zero-copy
// gradients] in shard/gradient_places.h.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fsdp/recompute.h>

#include <atomic>

#include "engine/support/twin.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int64_t kTableWidth = 128;
constexpr int64_t kVocabulary = 2221;  // 1.08 MiB of fp32; the number is a prime

// A large parameter between two small ones. The test passes the function that uses it.
struct TableImpl : torch::nn::Module {
  using Body = std::function<at::Tensor(TableImpl& table, const at::Tensor& tokens)>;
  explicit TableImpl(Body the_body) : body(std::move(the_body)) {
    before = register_parameter("before", torch::randn({kTableWidth}));
    weight = register_parameter("weight", torch::randn({kVocabulary, kTableWidth}));
    after = register_parameter("after", torch::randn({3, kTableWidth}));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return body(*this, tokens) * before + after.sum(0);
  }
  Body body;
  at::Tensor before, weight, after;
};
TORCH_MODULE(Table);

struct TableModelImpl : torch::nn::Module {
  explicit TableModelImpl(const TableImpl::Body& body) : table(body), head(kTableWidth, 1) {
    register_module("table", table);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& tokens) { return head(torch::tanh(table(tokens))); }
  Unit<Table> table;
  Unit<torch::nn::Linear> head;
};
TORCH_MODULE(TableModel);

at::Tensor looked_up(TableImpl& table, const at::Tensor& tokens) {
  return torch::embedding(table.weight, tokens);
}

at::Tensor table_loss(torch::nn::Module& model, int step, int rank) {
  const at::Generator generator = at::detail::createCPUGenerator(100 * step + rank);
  const at::Tensor tokens = torch::randint(kVocabulary, {9}, generator, torch::kLong);
  return dynamic_cast<UnitImpl<TableModelImpl>&>(model).call(tokens).square().mean();
}

Twin table_twin(const TableImpl::Body& body) {
  return {.make = [=] { return Unit<TableModel>(body).ptr(); }, .loss = table_loss};
}

// Records the largest allocation of this thread from LibTorch's allocator.
class TensorBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t in_use_ = 0, peak_ = 0;
};

thread_local Engine* engine_here = nullptr;

// Returns a twin with two micro-batches a step. The gradients of the first are kept for the second.
Twin kept_twin() {
  Twin twin = table_twin(looked_up);
  twin.before_step = [](torch::nn::Module&, Engine* engine, int) { engine_here = engine; };
  twin.loss = [](torch::nn::Module& model, int step, int rank) {
    {
      std::optional<GradSync> keep;
      if (engine_here != nullptr) keep.emplace(*engine_here, false);
      table_loss(model, step + 50, rank).backward();
    }
    return table_loss(model, step, rank);
  };
  return twin;
}

// Returns the plain model's parameters after one step. Its gradient is the sum of the mean
// gradients of two micro-batches.
std::map<std::string, at::Tensor> plain_after_two(int world) {
  const auto model = build_seeded(7, table_twin(looked_up).make);
  std::vector<at::Tensor> first;
  for (int micro = 0; micro < 2; ++micro) {
    mean_gradients(*model, world, [&](int rank) { table_loss(*model, micro, rank).backward(); });
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      at::Tensor& gradient = model->parameters()[i].mutable_grad();
      micro == 0 ? first.push_back(gradient.clone()) : void(gradient = first[i] + gradient);
    }
  }
  torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.2)).step();
  return plain_parameters(*model);
}

}  // namespace

TEST_CASE("a large parameter between small ones trains to the plain model's bits") {
  check_twin(table_twin(looked_up));
}

TEST_CASE("gradients kept without reducing are added where they are lent") {
  check_twin(kept_twin());
}

TEST_CASE("a second reduction of a step is added to the first") {
  for (const int world : {1, 2, 3}) {
    const auto plain = plain_after_two(world);
    for (const auto streams : every_stream_kind()) {
      run_torch_ranks(world, [&](Mesh mesh) {
        const auto model = build_seeded(7, table_twin(looked_up).make);
        Engine engine(model, mesh, {.debug = true, .tuning = {.cpu_streams = streams}});
        torch::optim::SGD optimizer(engine.parameters(), torch::optim::SGDOptions(0.2));
        for (int micro = 0; micro < 2; ++micro) table_loss(*model, micro, mesh.rank()).backward();
        optimizer.step();
        for (const auto& [fqn, value] : full_parameters(engine)) {
          CAPTURE(fqn);
          CHECK(bit_equal(value, plain.at(fqn)));
        }
      });
    }
  }
}

TEST_CASE("a large gradient in another order than its parameter is brought into order") {
  check_twin(table_twin([](TableImpl& table, const at::Tensor& tokens) {
    return table.weight.t().index_select(1, tokens).t();
  }));
}

TEST_CASE("ranks on which a large parameter has no gradient contribute zeros") {
  check_twin(table_twin([](TableImpl& table, const at::Tensor& tokens) {
    return tokens[0].item<int64_t>() % 2 == 0 ? torch::embedding(table.weight, tokens)
                                              : torch::ones({tokens.numel(), kTableWidth});
  }));
}

TEST_CASE("a gradient that the user holds is neither kept nor written to") {
  for (const bool kept : {false, true}) {
    run_torch_ranks(2, [&](Mesh mesh) {
      const auto model = build_seeded(7, table_twin(looked_up).make);
      at::Tensor held, as_it_came;
      auto& table = *dynamic_cast<TableModelImpl&>(*model).table;
      table.weight.register_hook([&](const at::Tensor& gradient) {
        held = gradient;
        as_it_came = gradient.clone();
      });
      Engine engine(model, mesh, {.debug = true});
      for (int step = 0; step < 2; ++step) {
        const GradSync sync(engine, step == 1 || !kept);
        table_loss(*model, step, mesh.rank()).backward();
        CHECK(held.use_count() == 1);
        CHECK(bit_equal(held, as_it_came));
      }
    });
  }
}

TEST_CASE("no reduce slot has room for a large gradient, and LibTorch holds it once") {
  constexpr int64_t kLarge = kVocabulary * kTableWidth * 4;
  // An embedding's gradient is a separate tensor. The gradient of a product with weight.t() is a
  // view.
  const auto multiplied = [](TableImpl& table, const at::Tensor& tokens) {
    const at::Tensor chosen = torch::nn::functional::one_hot(tokens, kVocabulary).to(torch::kFloat);
    return torch::linear(chosen, table.weight.t());
  };
  const auto as_linear = [](TableImpl& table, const at::Tensor& tokens) {
    const at::Tensor x = table.before.detach().expand({tokens.numel(), kTableWidth});
    return torch::linear(x, table.weight).mean(1, /*keepdim=*/true);
  };
  for (const auto& body : std::vector<TableImpl::Body>{looked_up, multiplied, as_linear}) {
    run_torch_ranks(2, [&](Mesh mesh) {
      const auto model = build_seeded(7, table_twin(body).make);
      Engine engine(model, mesh, {.debug = true});
      const auto tensors = std::make_shared<TensorBytes>();
      {
        const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, tensors);
        for (int step = 0; step < 2; ++step) {
          table_loss(*model, step, mesh.rank()).backward();
          CHECK(engine.stats().memory.overflow_slots == 0);
          engine.zero_grad();
        }
      }
      CHECK(tensors->peak() >= kLarge);
      CHECK(tensors->peak() < kLarge * 3 / 2);
      const MemoryPlan plan = engine.memory_plan();
      CHECK(plan.backward_peak[MemoryCategory::kReduceSlots] < kLarge / 10);
      CHECK(plan.kept_gradient_bytes > kLarge);
      CHECK(engine.stats().memory.peak[MemoryCategory::kReduceSlots] < kLarge / 10);
    });
  }
}

namespace {

// A weight that fills its unit. On two ranks, there is no padding and no reduce slot.
struct SquareImpl : torch::nn::Module {
  explicit SquareImpl(int64_t width) {
    weight = register_parameter("weight", torch::randn({width, width}) / 32);
  }
  at::Tensor forward(const at::Tensor& x) { return torch::matmul(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(Square);

struct SquaresImpl : torch::nn::Module {
  // If `again`, the first unit runs three times and is recomputed in backward. Then it closes three
  // times.
  SquaresImpl(int count, int64_t width, bool runs_again) : again(runs_again) {
    for (int i = 0; i < count; ++i) {
      squares.emplace_back(width);
      register_module("square" + std::to_string(i), squares.back());
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = x;
    if (!again) {
      for (auto& square : squares) h = torch::tanh(square(h));
      return h;
    }
    for (int i = 0; i < 3; ++i) {
      h = torch::tanh(recompute([this](const at::Tensor& in) { return squares[0](in); }, h));
    }
    return h;
  }
  bool again;
  std::vector<Unit<Square>> squares;
};
TORCH_MODULE(Squares);

struct Flight {
  std::atomic<int> issued = 0, done = 0, most = 0;
};

// Delays reductions, and counts how many are issued but not done.
void delay_reductions(Engine& engine, const std::shared_ptr<Flight>& flight) {
  engine.observe_events([&engine, flight](std::string_view event, std::string_view) {
    if (event != "reduce") return;
    flight->most = std::max<int>(flight->most, ++flight->issued - flight->done);
    state_of(engine).context->streams.reduce->call([flight] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++flight->done;
    });
  });
}

constexpr int64_t kSquare = 512;  // 1 MiB

}  // namespace

TEST_CASE("a unit that closes again while its last gradient waits to be reduced keeps both") {
  std::map<std::string, at::Tensor> inline_gradients;
  for (const auto streams : every_stream_kind()) {
    run_torch_ranks(2, [&](Mesh mesh) {
      Unit<Squares> model = build_seeded(7, [] { return Unit<Squares>(1, kSquare, true); });
      Engine engine(model.ptr(), mesh, {.tuning = {.cpu_streams = streams}});
      delay_reductions(engine, std::make_shared<Flight>());
      model(values({4, kSquare}, 5 + mesh.rank())).square().mean().backward();
      CHECK(engine.stats().reduces == 3);
      if (mesh.rank() != 0) return;
      for (const ShardedParameter& each : engine.sharded_parameters()) {
        const at::Tensor gradient = each.local.grad().clone();
        const auto [at, first] = inline_gradients.emplace(each.fqn, gradient);
        if (!first) CHECK(bit_equal(gradient, at->second));
      }
    });
  }
}

TEST_CASE("no more than two lent gradients stand whole while reductions are late") {
  const auto flight = std::make_shared<Flight>();
  run_torch_ranks(2, [&](Mesh mesh) {
    Unit<Squares> model = build_seeded(7, [] { return Unit<Squares>(6, kSquare, false); });
    Engine engine(model.ptr(), mesh, {.tuning = {.cpu_streams = CpuStreamKind::kThreaded}});
    if (mesh.rank() == 0) delay_reductions(engine, flight);
    model(values({4, kSquare}, 5 + mesh.rank())).square().mean().backward();
  });
  CHECK(flight->issued == 6);
  CHECK(flight->most <= 2);
}

TEST_CASE("a backward that fails after a large gradient came leaves nothing of it") {
  for (const int world : {1, 2}) {
    run_torch_ranks(world, [&](Mesh mesh) {
      bool fails = true;
      const auto body = [&fails](TableImpl& table, const at::Tensor& tokens) {
        at::Tensor before = table.before * 1;
        before.register_hook([&fails](const at::Tensor&) -> at::Tensor {
          if (fails) throw std::runtime_error("this backward fails");
          return {};
        });
        // Used later in forward, so its gradient comes earlier in backward.
        return torch::embedding(table.weight, tokens) + before.sum() * 0;
      };
      const auto model = build_seeded(7, [&] { return Unit<TableModel>(body).ptr(); });
      Engine engine(model, mesh, {.debug = true});
      CHECK_THROWS_WITH(table_loss(*model, 0, mesh.rank()).backward(),
                        doctest::Contains("this backward fails"));
      engine.zero_grad();
      fails = false;
      table_loss(*model, 0, mesh.rank()).backward();
      const double after = engine.measure_gradients(2.0).norm();
      engine.zero_grad();
      table_loss(*model, 0, mesh.rank()).backward();
      CHECK(engine.measure_gradients(2.0).norm() == after);
    });
  }
}
