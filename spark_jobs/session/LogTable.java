package commitlog;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table USING commitlog: the data source in Python with the table's options; those of a query override them. */
public class LogTable implements SupportsRead, SupportsWrite {
    private final String name;
    private final Table table;
    private final Map options;

    public LogTable(String name, Table table, Map options) {
        this.name = name;
        this.table = table;
        this.options = options;
    }

    public String name() {
        return name;
    }

    public StructType schema() {
        return table.schema();
    }

    public Column[] columns() {
        return table.columns();
    }

    public Transform[] partitioning() {
        return new Transform[0];
    }

    public Map properties() {
        Map described = new HashMap();
        described.put("provider", "commitlog");
        return described;
    }

    public Set capabilities() {
        return table.capabilities();
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
        return ((SupportsRead) table).newScanBuilder(with(given));
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return ((SupportsWrite) table).newWriteBuilder(new Write(info, with(info.options())));
    }

    private CaseInsensitiveStringMap with(CaseInsensitiveStringMap given) {
        Map all = new HashMap(new CaseInsensitiveStringMap(options)); // its names are in lower case, as those of `given`
        all.putAll(given);
        return new CaseInsensitiveStringMap(all);
    }

    private static class Write implements LogicalWriteInfo {
        private final LogicalWriteInfo info;
        private final CaseInsensitiveStringMap options;

        Write(LogicalWriteInfo info, CaseInsensitiveStringMap options) {
            this.info = info;
            this.options = options;
        }

        public CaseInsensitiveStringMap options() {
            return options;
        }

        public String queryId() {
            return info.queryId();
        }

        public StructType schema() {
            return info.schema();
        }
    }
}
