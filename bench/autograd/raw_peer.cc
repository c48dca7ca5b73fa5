// The minimum cost of an embedding: its rows are one tensor of the client. Forward gathers rows, and backward
// adds to each updated row.
#include "bench/autograd/batches.h"
#include "bench/autograd/work.h"

#include <ATen/Parallel.h>

namespace weft::bench {
namespace {

void measure(const Work& work, ClientEnd& end) {
  at::set_num_threads(1);
  at::Tensor table = at::rand({work.rows, row_size});
  Batches batches(work);
  RateMeter meter(end.budget());
  do {
    const at::Tensor& ids = batches.next();
    const at::Tensor rows = at::index_select(table, 0, ids);
    expect_answer(rows.size(0) == batch_rows);
    if (work.kind == Kind::update) table.index_add_(0, ids, at::ones_like(rows), -0.01);
  } while (meter.count(batch_rows));
  end.report(meter.calls());
}

}  // namespace

std::optional<Contender> raw_peer(const Work& work) {
  if (!work.is_table()) return std::nullopt;
  return contender("raw", {{"caller", "main"}},
                   {.serve =
                        [](ServerEnd& end) {
                          end.announce("nobody");
                          end.wait_for_client();
                        },
                    .measure = [work](ClientEnd& end) { measure(work, end); }});
}

}  // namespace weft::bench
