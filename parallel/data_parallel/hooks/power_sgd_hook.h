// PowerSgdHook: sends the gradient of a matrix as the product of two narrow matrices.
//
// PowerSGD (Vogels, Karimireddy and Jaggi, 2019). A gradient of two or more dimensions is a matrix M of n
// rows and m columns, where n is the first dimension. With an m x r matrix Q of the iteration before:
//   P = average of M Q, orthonormalized;  Q = average of M^H P;  the result is P Q^H, on all ranks.
// The ranks send (n + m) r numbers instead of n m. The residual M - P Q^H is added to the next gradient.
// Gradients of fewer dimensions, and those that would not become smaller by min_compression_rate, are
// averaged as they are, in the same collective as P. Columns are orthonormalized by QR, in float32 or wider,
// which is exact for columns that are zero or dependent.
//
// Each rank computes P Q^H itself: ranks with the same hardware and libraries get the same bits. A result
// depends on the bucket plan only with `batched`. If no rank reaches a parameter in an iteration,
// the part of its residual that this iteration sends is lost. Not thread-safe.
#pragma once

#include <weft/parallel/data_parallel/hooks/communication_hook.h>
#include <weft/parallel/data_parallel/hooks/residuals.h>

#include <torch/serialize/archive.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace weft::data_parallel {

// The same on all ranks.
struct PowerSgdOptions {
  std::int64_t rank = 1;                // r; at most n and m
  std::int64_t start_iteration = 1000;  // number of first iterations, which average gradients as they are
  double min_compression_rate = 2;      // compress if (n + m) r times this is less than n m
  bool use_error_feedback = true;       // add the residual to the next gradient
  bool warm_start = true;               // start with the Q of the iteration before, else with a random one
  // The first Q of parameter i is at::randn({m, r}) in float32 (complex64), of a CPU generator with the seed
  // `seed + i + (t << 20)`. t is 0 with warm_start, else the number of iterations before this one.
  std::uint64_t seed = 0;
  // A whole bucket, flat, is one square matrix, padded with zeros. Faster, and less accurate if rank > 1.
  bool batched = false;
};

class WEFT_EXPORT PowerSgdHook final : public CommunicationHook {
 public:
  // invalid_argument: rank < 1, start_iteration < 0, or min_compression_rate <= 0.
  explicit PowerSgdHook(const PowerSgdOptions& options = {});

  void begin_iteration() override;
  std::optional<rpc::Future<void>> run(const collectives::Group& group, GradientBucket& bucket,
                                       int step) override;

  // Elements of the gradients of the last iteration, and elements that a rank contributed to collectives.
  struct Volume {
    std::int64_t gradients = 0, sent = 0;
  };
  Volume volume() const { return volume_; }

  // Between iterations. Residuals differ between the ranks: each rank saves and loads its own state. After
  // load(), with the same options and module, the results are those of a run that was not interrupted (with
  // `batched`: from the same bucket plan).
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  // Matrices of one shape, which are multiplied at once.
  struct Batch {
    std::int64_t count = 0, rows = 0, columns = 0, rank = 0;
    std::vector<std::size_t> members = {};     // their gradients, as places in the bucket
    std::vector<std::int64_t> begins = {};     // of each member in `matrices`
    std::vector<std::size_t> parameters = {};  // by matrix: the parameter under which its Q is kept
    at::Tensor matrices = {};                  // count x rows x columns: gradients, later residuals
    std::vector<at::Tensor> sums = {};         // the parts of it, by member
    at::Tensor p = {}, q = {}, start = {};     // count x (rows or columns) x rank; start: a random Q
    std::vector<at::Tensor> factors = {};      // the parts of q, by matrix
  };
  struct Bucket {
    at::Tensor of;                   // the bucket's buffer, for which this was planned
    std::vector<std::size_t> plain;  // gradients that are not compressed, as places in the bucket
    std::vector<at::Tensor> copies;  // of these, in `first`
    std::vector<Batch> batches;
    at::Tensor first, second;  // what the two collectives reduce: plain gradients and all P; all Q
    bool compresses = false;   // in this iteration
  };

  bool is_worthwhile(std::int64_t rows, std::int64_t columns) const;
  void plan(const collectives::Group& group, const GradientBucket& content, Bucket& bucket) const;
  void allocate(const collectives::Group& group, const GradientBucket& content, Bucket& bucket) const;
  void fill_start(Batch& batch) const;
  void compute_p(Batch& batch, const GradientBucket& content);
  void decompress(Batch& batch, const GradientBucket& content);

  const PowerSgdOptions options_;
  std::int64_t iterations_ = 0;  // that have begun
  Volume volume_;
  Residuals residuals_;
  std::map<std::size_t, at::Tensor> factors_;  // Q of the last iteration, by parameter
  std::vector<Bucket> buckets_;                // by index
};

}  // namespace weft::data_parallel
