// The code of docs/everyday.md. Every code block of the page is a sequence of lines of this program
// or of everyday_program.cpp. This program checks the statements of the page. If $EVERYDAY_FOLDER
// is set, it writes files to this folder.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <span>

namespace nn = torch::nn;

namespace {

constexpr int64_t kWidth = 8, kClasses = 4, kRows = 203, kBatch = 16;

void check(bool holds, const char* what) {
  if (!holds) throw fsdp::StateError({.what = what, .where = "docs/everyday.md"});
}

struct BlockImpl : nn::Module {
  explicit BlockImpl(int64_t width)
      : linear(register_module("linear", nn::Linear(width, width))),
        dropout(register_module("dropout", nn::Dropout(0.1))) {}
  at::Tensor forward(const at::Tensor& x) { return x + dropout(torch::relu(linear(x))); }
  nn::Linear linear;
  nn::Dropout dropout;
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  NetImpl() : head(register_module("head", nn::Linear(kWidth, kClasses))) {
    for (const char* name : {"block0", "block1"})
      blocks.push_back(register_module(name, fsdp::Unit<Block>(kWidth)));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return head(x);
  }
  std::vector<fsdp::Unit<Block>> blocks;
  nn::Linear head;
};
TORCH_MODULE(Net);

// Random rows and their classes. Planes separate the classes.
struct Rows {
  at::Tensor x, y;
};

Rows make_rows() {
  const at::Generator generator = at::detail::createCPUGenerator(5);
  const at::Tensor x = torch::randn({kRows, kWidth}, generator, torch::kFloat);
  return {x, x.mm(torch::randn({kWidth, kClasses}, generator, torch::kFloat)).argmax(1)};
}

fsdp::BatchSampler sampler_of(const Rows& rows, const fsdp::Mesh& mesh, bool shuffle) {
  return fsdp::BatchSampler({.sample_count = rows.x.size(0),
                             .world_size = mesh.world_size(),
                             .rank = mesh.rank(),
                             .batch_size_per_rank = kBatch,
                             .shuffle = shuffle});
}

bool is_same_everywhere(const fsdp::Mesh& mesh, double value) {
  const auto [most, least] = mesh.max(std::array{value, -value});
  return most == -least;
}

double train_epochs(fsdp::Unit<Net>& model, fsdp::Engine& engine, const Rows& rows) {
  const fsdp::Mesh& mesh = engine.mesh();
  const int64_t epochs = 30;
  double last = 0;
  const fsdp::BatchSampler sampler({.sample_count = rows.x.size(0),
                                    .world_size = mesh.world_size(),
                                    .rank = mesh.rank(),
                                    .batch_size_per_rank = 16});
  const int64_t steps = epochs * sampler.batches_per_epoch();
  fsdp::AdamW optimizer(engine, {.lr = 0.02});
  fsdp::LinearLR warmup(optimizer, {.start_factor = 0.01, .total_iters = 20});
  fsdp::CosineAnnealingLR cosine(optimizer, {.T_max = steps - 20});
  fsdp::SequentialLR scheduler(optimizer, {.schedulers = {&warmup, &cosine}, .milestones = {20}});
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (int64_t index = 0; index < sampler.batches_per_epoch(); ++index) {
      const fsdp::MicroBatch mine = sampler.batch(epoch, index).micro_batches.front();
      const at::Tensor picked = torch::tensor(mine.samples);
      const at::Tensor x = rows.x.index_select(0, picked).to(engine.device());
      const at::Tensor y = rows.y.index_select(0, picked).to(engine.device());

      const at::Tensor logits = model(x);
      const at::Tensor loss = at::cross_entropy_loss(logits, y);
      (loss * mine.weight).backward();
      optimizer.clip_grad_norm(1.0);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();

      const double mean_loss = mesh.mean(loss, mine.weight, "loss");
      if (mesh.rank() == 0 && index == 0) {
        std::printf("epoch %ld loss %.3f lr %.4f\n", epoch, mean_loss, scheduler.last_lr());
      }
      last = mean_loss;
      if (epoch == 0 && index == 0) {
        const at::Tensor hits = (logits.argmax(1) == y).sum();
        const auto [all_hits, count] = mesh.sum(std::array{hits.item<int64_t>(), mine.count});
        const double accuracy = static_cast<double>(all_hits) / static_cast<double>(count);
        check(count == std::min(kRows, kBatch * mesh.world_size()) && accuracy <= 1, "accuracy");
      }
    }
  }
  check(optimizer.lr() < 1e-9, "the cosine ends at 0");
  return last;
}

// Returns the loss, weighted by the number of rows of this rank (`count`).
at::Tensor weighted(const fsdp::Mesh& mesh, const at::Tensor& loss, int64_t count) {
  const auto total = static_cast<double>(mesh.sum(count, "rows"));
  const double weight = static_cast<double>(mesh.world_size() * count) / total;
  return loss * weight;
}

double accuracy_of(fsdp::Unit<Net>& model, const fsdp::Engine& engine, const Rows& rows) {
  const fsdp::Mesh& mesh = engine.mesh();
  const fsdp::BatchSampler sampler = sampler_of(rows, mesh, /*shuffle=*/false);
  model->eval();
  const torch::NoGradGuard no_grad;
  int64_t right = 0;
  for (int64_t index = 0; index < sampler.batches_per_epoch(); ++index) {
    const fsdp::MicroBatch mine = sampler.batch(0, index).micro_batches.front();
    const at::Tensor picked = torch::tensor(mine.samples);
    const at::Tensor best = model(rows.x.index_select(0, picked).to(engine.device())).argmax(1);
    const at::Tensor hits = best.cpu() == rows.y.index_select(0, picked);
    right += hits.slice(0, 0, mine.count).sum().item<int64_t>();  // without a row that fills up
  }
  const double accuracy = static_cast<double>(mesh.sum(right)) / static_cast<double>(kRows);
  model->train();
  return accuracy;
}

// Returns the prediction for every row, on every rank.
std::vector<int64_t> predictions_of(fsdp::Unit<Net>& model, const fsdp::Engine& engine,
                                    const Rows& rows) {
  const fsdp::Mesh& mesh = engine.mesh();
  const fsdp::BatchSampler sampler = sampler_of(rows, mesh, /*shuffle=*/false);
  const torch::NoGradGuard no_grad;
  model->eval();
  std::vector<int64_t> predicted(kRows);
  for (int64_t index = 0; index < sampler.batches_per_epoch(); ++index) {
    const fsdp::MicroBatch mine = sampler.batch(0, index).micro_batches.front();
    const at::Tensor picked = torch::tensor(mine.samples);
    const at::Tensor best = model(rows.x.index_select(0, picked).to(engine.device())).argmax(1);
    // Row and class in turn, as many on every rank: -1 where a rank has fewer rows.
    at::Tensor pairs = torch::full({kBatch, 2}, -1, torch::kLong);
    pairs.slice(0, 0, picked.size(0)).copy_(at::stack({picked, best.cpu()}, 1));
    const auto all = mesh.gather(std::span(pairs.const_data_ptr<int64_t>(), 2 * kBatch));
    for (size_t i = 0; i < all.size(); i += 2)
      if (all[i] >= 0) predicted[all[i]] = all[i + 1];
  }
  model->train();
  return predicted;
}

void save_and_load(fsdp::Unit<Net>& model, fsdp::Engine& engine, const std::string& folder) {
  const fsdp::Mesh& mesh = engine.mesh();
  fsdp::save_weights(engine, folder + "/model.safetensors");
  fsdp::load_weights(engine, folder + "/model.safetensors");
  {
    const fsdp::Gathered whole(engine);
    if (mesh.rank() == 0) torch::save(model, folder + "/model.pt");
  }
}

// Trains a model of its own, with checkpoints if the command line names a folder.
int train_resumably(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, const Rows& rows) {
  const int64_t steps = 24;
  double best_loss = 1e9;
  fsdp::Unit<Net> model;
  fsdp::Engine engine(model, mesh, run.engine);
  fsdp::AdamW optimizer(engine, {.lr = 0.02});
  fsdp::CosineAnnealingLR scheduler(optimizer, {.T_max = steps});
  const fsdp::BatchSampler sampler = sampler_of(rows, mesh, /*shuffle=*/true);
  fsdp::SampleCursor cursor(sampler);
  fsdp::TrainingState state(engine);  // weights, buffers, random states
  state.add("optimizer", optimizer).add("schedule", scheduler);
  state.add("data", cursor).add("best", best_loss);
  fsdp::Checkpoints checkpoints(state, run.checkpoints);  // --save-steps, --save-dir, --resume, …
  for (int64_t step = checkpoints.resume(); step < steps;) {
    const fsdp::MicroBatch mine = cursor.batch(step).micro_batches.front();
    const at::Tensor picked = torch::tensor(mine.samples);
    const at::Tensor x = rows.x.index_select(0, picked).to(engine.device());
    const at::Tensor y = rows.y.index_select(0, picked).to(engine.device());
    const at::Tensor loss = at::cross_entropy_loss(model(x), y);
    (loss * mine.weight).backward();
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    best_loss = std::min(best_loss, mesh.mean(loss, mine.weight, "loss"));
    if (checkpoints.after_step(++step)) return 0;  // saves if due or after a signal; true: stop now
  }
  if (mesh.rank() == 0) std::printf("best loss %a\n", best_loss);
  return 0;
}

void by_policy(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, const Rows& rows) {
  const at::Tensor x = rows.x, y = rows.y;
  nn::Sequential model(nn::Linear(kWidth, kWidth), nn::ReLU(), nn::Linear(kWidth, kClasses));
  fsdp::Options options = run.engine;
  options.units = fsdp::by_type<nn::Linear>();
  fsdp::Engine engine(model, mesh, options);
  const at::Tensor loss = engine.forward(
      [&](at::Tensor input) { return at::cross_entropy_loss(model->forward(input), y); }, x);
  loss.backward();
  check(engine.memory_plan().to_string().size() > 0, "a policy's engine");
}

void with_libtorch_loader(const fsdp::Mesh& mesh, const Rows& rows) {
  const auto dataset = torch::data::datasets::TensorDataset(rows.x).map(
      torch::data::transforms::Stack<torch::data::TensorExample>());
  std::vector<double> sums;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    torch::data::samplers::DistributedRandomSampler mine(kRows, mesh.world_size(), mesh.rank());
    mine.set_epoch(epoch);
    const auto loader = torch::data::make_data_loader(dataset, mine, /*batch_size=*/16);
    int64_t batches = 0, seen = 0;
    for (const auto& batch : *loader) {
      if (batches++ == 0) sums.push_back(batch.data.sum().item<double>());
      seen += batch.data.size(0);
    }
    check(is_same_everywhere(mesh, batches), "equally many batches");
    const int64_t all = mesh.sum(seen);
    check(all >= kRows && all < kRows + mesh.world_size(), "the last rows serve twice");
  }
  check(sums[0] != sums[1], "an order of its own for each epoch");
}

void seeds(const fsdp::Mesh& mesh, const fsdp::RunOptions& run) {
  const bool alone = mesh.world_size() == 1;
  const auto draws_alike = [&] {
    return is_same_everywhere(mesh, torch::rand({1}, torch::kDouble).item<double>());
  };
  check(draws_alike() == alone, "LibTorch seeds each process by chance");
  {
    fsdp::BuildScope building(mesh, run.engine);
    fsdp::Unit<Net> model;
    const fsdp::Engine engine(model, building);
    check(draws_alike() == alone, "a BuildScope leaves each rank its own random numbers");
  }
  torch::manual_seed(42);
  check(draws_alike(), "one seed, one sequence on all ranks");
  torch::manual_seed(42 + mesh.rank());
  const bool before = draws_alike();
  fsdp::Unit<Net> model;  // each rank has its own values; rank 0's are used
  fsdp::Engine engine(model, mesh, run.engine);
  check(before == alone && draws_alike() == alone, "seeds that differ stay so");
  const std::vector<float> first = [&] {
    const fsdp::Gathered whole(engine);
    return mesh.gather(std::vector<float>{model->head->weight[0][0].item<float>()});
  }();
  check(std::set<float>(first.begin(), first.end()).size() == 1, "equal weights on all ranks");
}

struct NormedImpl : nn::Module {
  explicit NormedImpl(const fsdp::Mesh& mesh)
      : local(register_module("local", nn::BatchNorm1d(kWidth))),
        global(register_module("global", fsdp::SyncBatchNorm(kWidth, mesh))) {}
  at::Tensor forward(const at::Tensor& x) { return global(local(x)); }
  nn::BatchNorm1d local;
  fsdp::SyncBatchNorm global;
};
TORCH_MODULE(Normed);

void norms(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, const Rows& rows) {
  fsdp::Unit<Normed> model(mesh);
  fsdp::Engine engine(model, mesh, run.engine);
  const auto is_same = [&](const at::Tensor& buffer) {
    return is_same_everywhere(mesh, buffer[0].item<double>());
  };
  const torch::NoGradGuard no_grad;
  model(rows.x.slice(0, 20 * mesh.rank(), 20 * mesh.rank() + 20).to(engine.device()));
  const bool alone = mesh.world_size() == 1;
  check(is_same(model->local->running_mean) == alone, "statistics are each rank's own");
  check(is_same(model->global->running_mean), "SyncBatchNorm's are those of all");
  engine.average_buffers();
  check(is_same(model->local->running_mean), "average_buffers");
}

struct PairImpl : nn::Module {
  PairImpl()
      : generator(register_module("generator", fsdp::Unit<nn::Linear>(kWidth, kWidth))),
        discriminator(register_module("discriminator", fsdp::Unit<nn::Linear>(kWidth, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return discriminator(generator(x)).mean(); }
  fsdp::Unit<nn::Linear> generator, discriminator;
};
TORCH_MODULE(Pair);

void two_optimizers(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, const Rows& rows) {
  fsdp::Unit<Pair> model;
  fsdp::Engine engine(model, mesh, run.engine);
  fsdp::AdamW generator(engine, {.lr = 2e-4, .parameters = fsdp::under("generator")});
  fsdp::SGD discriminator(engine, {.lr = 0.1, .parameters = fsdp::under("discriminator")});
  model(rows.x.to(engine.device())).backward();
  generator.step();
  check(generator.steps() == 1 && discriminator.steps() == 0, "a step of one optimizer");
}

// bf16 parameters, two micro-batches a step, and no weight decay for biases.
void accumulate(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, const Rows& rows) {
  fsdp::Options options = run.engine;
  options.mixed_precision = {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat32};
  fsdp::BuildScope building(mesh, options);
  fsdp::Unit<Net> model;
  fsdp::Engine engine(model, building);
  fsdp::AdamW optimizer(
      engine, {.lr = 0.02, .groups = {{.match = fsdp::is_bias_or_norm, .weight_decay = 0.0}}});
  const fsdp::BatchSampler sampler({.sample_count = rows.x.size(0),
                                    .world_size = mesh.world_size(),
                                    .rank = mesh.rank(),
                                    .batch_size_per_rank = 8,
                                    .accumulation_steps = 2});
  const fsdp::GlobalBatch batch = sampler.batch(0, 0);
  for (const fsdp::MicroBatch& mine : batch.micro_batches) {
    const fsdp::GradSync sync(engine, &mine == &batch.micro_batches.back());
    const at::Tensor picked = torch::tensor(mine.samples);
    const at::Tensor logits = model(rows.x.index_select(0, picked).to(engine.device()));
    const at::Tensor y = rows.y.index_select(0, picked).to(engine.device());
    (at::cross_entropy_loss(logits, y) * mine.weight).backward();
  }
  const double norm = optimizer.clip_grad_norm(1.0).norm();
  optimizer.step();
  optimizer.zero_grad();
  check(norm > 0 && optimizer.steps() == 1, "one step of two micro-batches");
}

int train(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, fsdp::ErrorPlace& place) {
  const Rows rows = make_rows();
  seeds(mesh, run);
  norms(mesh, run, rows);
  two_optimizers(mesh, run, rows);
  accumulate(mesh, run, rows);
  with_libtorch_loader(mesh, rows);
  by_policy(mesh, run, rows);
  const at::Tensor own = weighted(mesh, torch::ones({}), 1 + mesh.rank());
  check(std::abs(mesh.mean(own) - 1) < 1e-6, "weights of uneven batches");

  fsdp::BuildScope building(mesh, run.engine);
  fsdp::Unit<Net> model;
  fsdp::Engine engine(model, building);
  if (mesh.rank() == 0) std::puts(engine.describe().c_str());
  const double loss = train_epochs(model, engine, rows);
  place.step = 1;
  const double accuracy = accuracy_of(model, engine, rows);
  const std::vector<int64_t> predicted = predictions_of(model, engine, rows);
  const at::Tensor hits = torch::tensor(predicted) == rows.y;
  check(hits.sum().item<int64_t>() == std::llround(accuracy * kRows), "gathered predictions");
  if (const char* folder = std::getenv("EVERYDAY_FOLDER")) {
    save_and_load(model, engine, folder);
    check(accuracy_of(model, engine, rows) == accuracy, "loaded weights");
  }
  if (mesh.rank() == 0) std::printf("loss %.3f accuracy %.3f\n", loss, accuracy);
  return train_resumably(mesh, run, rows);
}

int plain_main() {
  const fsdp::Mesh mesh = fsdp::Mesh::from_env();
  const fsdp::RunOptions run;
  fsdp::ErrorPlace place;
  return train(mesh, run, place);
}

}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("EVERYDAY_PLAIN") != nullptr) return plain_main();
  return fsdp::run_program(argc, argv, train, {.checkpoints = true});
}
